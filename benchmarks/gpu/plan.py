"""How much `benchmarks.gpu` measures on each device."""

from dataclasses import dataclass

from benchmarks.server.processes import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """What is measured on one device."""

    device: str
    precision: str
    sizes: tuple[str, ...]
    main_size: str  # the size whose server is measured too
    tokens: tuple[int, ...]  # in one batch
    rounds: int
    server: Load
    clients: int  # processes that send to the server
    output: str  # name of the JSON file in benchmarks/results


PLANS = {
    "cuda": GpuPlan(
        device="cuda",
        precision="fp16",
        sizes=("base", "large"),
        main_size="base",
        tokens=(1024, 4096, 16384, 65536),
        rounds=10,
        server=Load(workers=(1, 2, 4), texts=(1, 32), connections=512, seconds=10.0),
        clients=6,
        output="gpu",
    ),
    "cpu": GpuPlan(
        device="cpu",
        precision="fp32",
        sizes=("tiny",),
        main_size="tiny",
        tokens=(64, 256),
        rounds=1,
        server=Load(workers=(1, 2), texts=(1, 32), connections=8, seconds=0.5),
        clients=2,
        output="gpu-rehearsal",
    ),
}
