"""How much `benchmarks.gpu` measures on each device, with which lengths, and what must hold."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.server import ServerPlan
from benchmarks.harness import mixes

SQUAD = {"mean": 177.0, "deviation": 80.0, "longest": 384.0}
LENGTHS: dict[str, Callable[[int], list[int]]] = {  # mix -> lengths of a batch of about so many tokens
    "STS-B": lambda tokens: (mixes.STS_B * (1 + tokens // sum(mixes.STS_B)))[: max(1, round(tokens / 14.7))],
    "128": lambda tokens: [128] * max(1, tokens // 128),
    "512": lambda tokens: [512] * max(1, tokens // 512),
    "SQuAD": lambda tokens: mixes.passages(max(1, tokens // 177), **SQUAD),
}
TARGETS = {  # size, mix -> what is counted, what must hold, what is hoped for; of an H200 in fp16
    ("base", "STS-B"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "128"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "512"): ("tokens_per_second", 1.5e6, 1.9e6),
    ("large", "SQuAD"): ("sequences_per_second", 2500.0, 4000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """What is measured on one device."""

    device: str
    precision: str
    sizes: tuple[str, ...]
    main_size: str  # the size whose server is measured too
    tokens: tuple[int, ...]  # in one batch
    rounds: int
    families: int | None  # golden checkpoints; None: all
    server: ServerPlan
    output: str  # name of the JSON file in benchmarks/results


PLANS = {
    "cuda": GpuPlan(
        device="cuda",
        precision="fp16",
        sizes=("base", "large"),
        main_size="base",
        tokens=(1024, 4096, 16384, 65536),
        rounds=10,
        families=None,
        server=ServerPlan(workers=(1, 2, 4), texts=(1, 32), connections=512, clients=6, seconds=10.0),
        output="gpu",
    ),
    "cpu": GpuPlan(
        device="cpu",
        precision="fp32",
        sizes=("tiny",),
        main_size="tiny",
        tokens=(64, 256),
        rounds=1,
        families=2,
        server=ServerPlan(workers=(1, 2), texts=(1, 32), connections=8, clients=2, seconds=0.5),
        output="gpu-rehearsal",
    ),
}
