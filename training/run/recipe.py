"""Every setting of the training run."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path

from training.data.batches import MASKED_SHARE
from training.model.shape import Shape, read_config
from training.run.schedule import Schedule

SHAPE = Shape(vocabulary_size=16384, hidden=256, layers=4, heads=4, inner=1024, positions=512, norm_eps=1e-12)
# half Chinese; of the English, the simple one is read about once and the other in part
SOURCE_SHARES = {
    "enwiki_2015": 0.27,
    "simplewiki_2018": 0.20,
    "zhwiki_2024": 0.47,
    "entatoeba": 0.03,
    "zhtatoeba": 0.03,
}
LATE_SHARES = {  # in the decay, and in a run with a teacher: more everyday sentences
    "enwiki_2015": 0.22,
    "simplewiki_2018": 0.18,
    "zhwiki_2024": 0.40,
    "entatoeba": 0.10,
    "zhtatoeba": 0.10,
}

EVERYDAY = "tatoeba"  # the end of the names of the sources with everyday sentences
DECAY_SHARE = 0.355  # of the tokens
TAUGHT_SHARE = 0.125  # of the tokens of a step with the third loss
LATE_MASKED = 0.4  # of the tokens: over the last ones of a run, MASKED_SHARE is predicted, as where masks are filled
TOKENS_PER_STEP = {"cpu": 8192, "cuda": 65536}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What distinguishes one run from another; the defaults are a first run from random weights."""

    name: str = "checkpoints"  # of its folder under the work folder; also the seed of its rows
    start: Path | None = None  # folder of a finished model to continue from
    rate: float = 1.0  # factor on both learning rates
    constant: bool = False  # with `start`: the rate stays constant until the decay, as in a first run
    decay: float = DECAY_SHARE  # of the tokens, of a first or constant run
    until: float | None = None  # seconds since the epoch: the schedule has ended then, however few tokens were seen
    pause: Path | None = None  # while this file exists, nothing is computed
    teacher: Path | None = None  # file of sentence vectors: adds the third loss, in a constant run in the decay
    guide: Path | None = None  # folder of a finished model of the same vocabulary, whose answers are learned too
    everyday: float | None = None  # share of the rows from everyday sentences; without it that of the recipe
    masked: float = MASKED_SHARE  # share of the tokens that are predicted, until LATE_MASKED
    step_tokens: int | None = None  # tokens of a step; without it those of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    encoded: Path
    tokenizer: Path
    checkpoints: Path
    shape: Shape
    schedule: Schedule
    source_shares: dict[str, float]
    late_shares: dict[str, float]  # once the decay has begun
    device: str
    workers: int
    tokens_per_step: int
    matrix_rate: float
    other_rate: float
    matrix_decay: float
    seed: int
    save_seconds: float
    run: Run = field(default_factory=Run)

    def shares(self, names: list[str], *, tokens: int) -> list[float]:
        """The share of the rows for each source; raises KeyError for a source that the recipe does not name."""
        late = self.has_third_loss(tokens) or tokens >= self.schedule.decay_begins
        by_name = self.late_shares if late else self.source_shares
        if self.run.everyday is not None:
            by_name = with_everyday(by_name, share=self.run.everyday)
        return [by_name[name] for name in names]

    def masked_share(self, tokens: int) -> float:
        """The share of the tokens that are predicted; high at first, then low (Yang et al. 2023)."""
        return self.run.masked if tokens < self.schedule.total * (1 - LATE_MASKED) else MASKED_SHARE

    def has_third_loss(self, tokens: int) -> bool:
        """Whether a part of the step's tokens, TAUGHT_SHARE, are sentences with a teacher's vectors."""
        begun = not self.run.constant or tokens >= self.schedule.decay_begins
        return self.run.teacher is not None and begun


def with_everyday(shares: dict[str, float], *, share: float) -> dict[str, float]:
    """The shares with another one of everyday sentences, the others in their proportions."""
    everyday = sum(value for name, value in shares.items() if name.endswith(EVERYDAY))
    return {
        name: value * (share / everyday if name.endswith(EVERYDAY) else (1 - share) / (1 - everyday))
        for name, value in shares.items()
    }


def recipe(*, work: Path, tokens: int, device: str, workers: int, run: Run | None = None) -> Recipe:
    run = run or Run()
    return Recipe(
        encoded=work / "encoded",
        tokenizer=work / "vocabulary" / "tokenizer.json",
        checkpoints=work / run.name,
        shape=read_config(run.start / "config.json") if run.start else SHAPE,
        schedule=plan_schedule(tokens, run=run),
        source_shares=SOURCE_SHARES,
        late_shares=LATE_SHARES,
        device=device,
        workers=workers,
        tokens_per_step=run.step_tokens or TOKENS_PER_STEP[device],
        matrix_rate=3e-3 * run.rate,
        other_rate=2e-3 * run.rate,
        matrix_decay=0.05,
        seed=zlib.crc32(run.name.encode()),  # a run that continues another one sees other rows and other masks
        save_seconds=240.0,
        run=run,
    )


def plan_schedule(tokens: int, *, run: Run) -> Schedule:
    """A run that continues finished weights has fewer long rows; with a teacher and no constant part it has none."""
    if run.start is None or run.constant:
        every = 2 if run.start is None else 4
        return Schedule(
            total=tokens, warm_up=3_000_000, decay_share=run.decay, short_row=128, long_row=512, long_every=every
        )
    warm_up = min(3_000_000, tokens // 40)
    share = 0.0 if run.teacher else 0.5
    return Schedule(
        total=tokens, warm_up=warm_up, decay_share=share, short_row=128, long_row=512, continues=True, long_every=4
    )
