"""The optimizers of the training run."""

import torch
from torch import nn

from training.model.precision import has_bf16
from training.run.recipe import Recipe

BETAS = (0.9, 0.98)


def make_optimizers(owned: dict[str, nn.Parameter], *, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else, and for all where products in bf16 are slow.

    Muon computes in bf16, and adjusts its rate so that a step is as large as AdamW's.
    """
    inside = [p for name, p in owned.items() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in owned.items() if ".layers." not in name or p.ndim < 2]
    matrices = {"lr": recipe.matrix_rate, "weight_decay": recipe.matrix_decay}
    rest = {"params": others, "lr": recipe.other_rate, "weight_decay": 0.0}
    if has_bf16(recipe.device):
        muon = torch.optim.Muon(inside, adjust_lr_fn="match_rms_adamw", **matrices)
        made = [muon, torch.optim.AdamW([rest], betas=BETAS, fused=True)]
    else:
        made = [torch.optim.AdamW([{"params": inside, **matrices}, rest], betas=BETAS, fused=True)]
    for optimizer in made:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return made
