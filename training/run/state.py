"""Saves and finds the state of a run: a folder for each saved step with a file for each worker.

A folder gets its final name when all files are written.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.model.shape import Shape

KEPT = 2  # saved steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0  # seen
    planned: int = 0  # where in the schedule it is; ahead of the tokens seen if it ends at a given time
    began: float = 0.0  # seconds since the epoch


def find_latest(folder: Path) -> Path | None:
    found = sorted(folder.glob("step-*"))
    return found[-1] if found else None


def save(
    folder: Path,
    *,
    worker: int,
    owned: dict[str, nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    shape: Shape,
    barrier: Any,
) -> None:
    """All workers call it at the same step; the first one renames the folder when all files are written."""
    writing, final = folder / f"writing-{progress.step:07d}", folder / f"step-{progress.step:07d}"
    writing.mkdir(parents=True, exist_ok=True)
    state = {
        "owned": {name: parameter.detach().clone() for name, parameter in owned.items()},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
        "shape": asdict(shape),
    }
    torch.save(state, writing / f"worker-{worker}.pt")
    barrier.wait()
    if worker == 0:
        shutil.rmtree(final, ignore_errors=True)
        writing.rename(final)
        for old in sorted(folder.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)
    barrier.wait()


def load(
    folder: Path, *, worker: int, owned: dict[str, nn.Parameter], optimizers: list[torch.optim.Optimizer]
) -> Progress:
    state = torch.load(folder / f"worker-{worker}.pt", weights_only=True)
    with torch.no_grad():
        for name, parameter in owned.items():
            parameter.copy_(state["owned"][name])
    for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    return Progress(**state["progress"])


def merge_weights(folder: Path) -> tuple[Shape, dict[str, torch.Tensor], int]:
    """The parameters of all workers in one saved state, and the tokens seen."""
    states = [torch.load(path, weights_only=True) for path in sorted(folder.glob("worker-*.pt"))]
    merged = {name: tensor for state in states for name, tensor in state["owned"].items()}
    return Shape(**states[0]["shape"]), merged, states[0]["progress"]["tokens"]
