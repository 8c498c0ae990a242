"""The whole server: requests a second by the number of workers, which share the device, and the waiting time at a tenth
of the best rate."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import mixes
from benchmarks.harness.client import percentile, post
from benchmarks.harness.machine import table
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.client_processes import ClientProcesses, client_processes
from benchmarks.server.processes import Finding, Load, measure

QUIET_SHARE = 0.1  # of the best rate with one text a request
LIMITS_MS = {"p50": (0.5, 2.5), "p99": (0.99, 5.0)}
REQUESTS = 512  # different requests
READY_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """The workers of the server, the processes of its clients, and the load."""

    workers: tuple[int, ...]
    texts: tuple[int, ...]  # in a request
    connections: int
    clients: int  # processes; they share the machine with the server
    seconds: float  # of each measurement


def measure_server(artifact: Path, device: str, plan: ServerPlan) -> dict[str, Any]:
    """`rates`: a Finding for each number of workers and texts; `latency`: at a tenth of the best rate."""
    findings: list[Finding] = []
    with client_processes(plan.clients) as clients:
        for workers in plan.workers:
            with running_server(artifact, device, workers) as one:
                for count in plan.texts:
                    load = Load(
                        requests=build_requests(count), texts=count, connections=plan.connections, seconds=plan.seconds
                    )
                    findings.append(measure(one, workers, load, clients))
                    print(findings[-1], flush=True)
        best = max(
            (finding for finding in findings if finding.texts == plan.texts[0]),
            key=lambda finding: finding.requests_per_second,
        )
        with running_server(artifact, device, best.workers) as one:
            waits = measure_latency(one, QUIET_SHARE * best.requests_per_second, plan.seconds, clients)
    return {
        "rates": [asdict(finding) for finding in findings],
        "latency": {"workers": best.workers} | waits,
    }


@contextmanager
def running_server(artifact: Path, device: str, workers: int) -> Iterator[ServiceProcess]:
    """A server that is ready; raises RuntimeError with its output if it ends before that."""
    settings = {
        "BERT_MODEL": str(artifact),
        "BERT_DEVICE": device,
        "BERT_WORKERS": str(workers),
    }
    with ServiceProcess(settings, ready_seconds=READY_SECONDS) as one:
        if one.process.poll() is not None:
            raise RuntimeError(f"the service ended with exit code {one.process.returncode}: {one.output()}")
        yield one


def build_requests(texts: int) -> list[bytes]:
    """Requests with texts of STS-B's lengths, in words of the random checkpoints' vocabulary, one token each."""
    draw = random.Random(12)

    def text() -> str:
        return " ".join(f"w{draw.randrange(5, 1024)}" for _ in range(draw.choice(mixes.STS_B) - 2))

    return [
        post("/embed", {"inputs": [text() for _ in range(texts)]}, accept="application/x-npy")
        for _ in range(max(1, REQUESTS // texts))
    ]


def measure_latency(one: ServiceProcess, rate: float, seconds: float, clients: ClientProcesses) -> dict[str, float]:
    clients.open_loop(one.port, build_requests(1), rate=rate, seconds=min(1.0, seconds))  # warms up
    stream = clients.open_loop(one.port, build_requests(1), rate=rate, seconds=seconds)
    waits = {f"{name} ms": percentile(stream.answered, share) for name, (share, _) in LIMITS_MS.items()}
    return {"offered": rate, "achieved": stream.rate} | waits


def print_server(found: dict[str, Any]) -> dict[str, Any]:
    """Prints what `measure_server` found and returns it."""
    rows: Sequence[dict[str, float]] = found["rates"]
    print("\n" + table(list(rows[0]), [list(row.values()) for row in rows]))
    limits = {f"{name} ms": limit for name, (_, limit) in LIMITS_MS.items()}
    print(
        "\n"
        + table(
            ["one text a request, at a tenth", "measured", "limit"],
            [[k, v, limits.get(k, "")] for k, v in found["latency"].items()],
        )
    )
    return found
