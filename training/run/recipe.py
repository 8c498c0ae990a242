"""Every setting of the training run."""

from dataclasses import dataclass
from pathlib import Path

from training.model.shape import Shape
from training.run.schedule import Schedule

SHAPE = Shape(vocabulary_size=16384, hidden=256, layers=4, heads=4, inner=1024, positions=512, norm_eps=1e-12)
# half Chinese; of the English, the simple one is read about once and the other in part
SOURCE_SHARES = {"enwiki_2015": 0.29, "simplewiki_2018": 0.21, "zhwiki_2024": 0.5}

TOKENS_PER_STEP = {"cpu": 8192, "cuda": 65536}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    encoded: Path
    checkpoints: Path
    shape: Shape
    schedule: Schedule
    source_shares: dict[str, float]
    device: str
    workers: int
    tokens_per_step: int
    matrix_rate: float
    other_rate: float
    matrix_decay: float
    seed: int
    save_seconds: float


def recipe(*, work: Path, tokens: int, device: str, workers: int) -> Recipe:
    return Recipe(
        encoded=work / "encoded",
        checkpoints=work / "checkpoints",
        shape=SHAPE,
        schedule=Schedule(total=tokens, warm_up=3_000_000, decay_share=0.355, short_row=128, long_row=512),
        source_shares=SOURCE_SHARES,
        device=device,
        workers=workers,
        tokens_per_step=TOKENS_PER_STEP[device],
        matrix_rate=3e-3,
        other_rate=2e-3,
        matrix_decay=0.05,
        seed=1,
        save_seconds=240.0,
    )
