"""The optimizers of the training run."""

import torch
from torch import nn

from training.run.recipe import Recipe


def make_optimizers(owned: dict[str, nn.Parameter], *, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    inside = [p for name, p in owned.items() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in owned.items() if ".layers." not in name or p.ndim < 2]
    muon = torch.optim.Muon(
        inside, lr=recipe.matrix_rate, weight_decay=recipe.matrix_decay, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return [muon, adam]
