"""`python -m benchmarks.server.processes`: requests a second and processor time, by the number of workers.

A closed loop over loopback: each connection of each client process sends one short text after another. The model is the
tiny one of the tests, so that the model is not what is measured, or that of `--model`. Load and service share this
machine's cores: if these are the limit, the processor time of a request says more than the rate.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.client import percentile, post
from benchmarks.harness.machine import table, write
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Cpu
from benchmarks.server.client_processes import ClientProcesses, client_processes
from packbert.model_export.export import export

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "bert"
WARM_UP_SECONDS = 1.0
START_SECONDS = 60.0  # between the first worker that serves and the last
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is measured: each number of workers with each number of texts in a request."""

    workers: Sequence[int]
    texts: Sequence[int]
    connections: int
    seconds: float  # of each measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    workers: int
    texts: int  # in a request
    connections: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    processor_us: float  # a request, in all processes of the service together
    busiest: float  # share of the workers' processor time that the busiest of them takes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--model", type=Path, help="an artifact; the tiny one unless given")
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 32], help="in a request")
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--output", default="processes", help="name of the JSON file in benchmarks/results; - for none")
    asked = parser.parse_args()
    load = Load(workers=asked.workers, texts=asked.texts, connections=asked.connections, seconds=asked.seconds)
    with tempfile.TemporaryDirectory() as folder, client_processes(asked.clients) as clients:
        artifact = asked.model
        if artifact is None:
            export(GOLDEN, artifact := Path(folder) / "artifact", precision="fp32")
        settings = {"BERT_MODEL": str(artifact.resolve()), "BERT_CACHE": str(Path(folder) / "cache")}
        findings = measure_workers(settings, load, build_requests, clients)
    print(as_table(findings))
    if asked.output != "-":
        write(asked.output, findings)


def build_requests(texts: int) -> list[bytes]:
    return [post("/embed", {"inputs": ["the cat sat on the mat"] * texts})]


def measure_workers(
    settings: Mapping[str, str], load: Load, build: Callable[[int], list[bytes]], clients: ClientProcesses
) -> list[dict[str, Any]]:
    """A Finding for each number of workers and of texts; `build` makes requests of so many texts."""
    findings = []
    for workers in load.workers:
        with running(settings, workers) as service:
            for texts in load.texts:
                findings.append(asdict(measure(service, workers, texts, build(texts), load, clients)))
                print(findings[-1], flush=True)
    return findings


def as_table(findings: Sequence[Mapping[str, Any]]) -> str:
    return table(list(findings[0]), [list(finding.values()) for finding in findings])


@contextmanager
def running(settings: Mapping[str, str], workers: int) -> Iterator[ServiceProcess]:
    """A service that is ready; raises RuntimeError with its output if it ends before that."""
    with ServiceProcess({**settings, "BERT_WORKERS": str(workers)}) as service:
        if service.process.poll() is not None:
            raise RuntimeError(f"the service ended with exit code {service.process.returncode}: {service.output()}")
        yield service


def measure(
    service: ServiceProcess, workers: int, texts: int, requests: Sequence[bytes], load: Load, clients: ClientProcesses
) -> Finding:
    main = service.process.pid
    serving = serving_workers(service, workers) if workers > 1 else [main]
    clients.closed_loop(service.port, requests, connections=load.connections, seconds=WARM_UP_SECONDS)
    before = {pid: Cpu.of(pid) for pid in {main, *serving}}
    stream = clients.closed_loop(service.port, requests, connections=load.connections, seconds=load.seconds)
    used = {pid: Cpu.of(pid).since(before[pid]).process for pid in before}
    by_workers = [used[pid] for pid in serving]
    p50, p99 = (percentile(stream.answered, share) for share in (0.5, 0.99))
    return Finding(
        workers=workers,
        texts=texts,
        connections=load.connections,
        requests_per_second=stream.rate,
        p50_ms=p50,
        p99_ms=p99,
        processor_us=sum(used.values()) / len(stream.answered) * 1e6,
        busiest=max(by_workers) / sum(by_workers),
    )


def serving_workers(service: ServiceProcess, workers: int) -> list[int]:
    """Their process ids when all of them serve: until then the first ones get all connections. Raises TimeoutError."""
    end, pid = time.monotonic() + START_SECONDS, service.process.pid
    while f"with {workers} workers" not in service.output():
        if time.monotonic() > end:
            raise TimeoutError(f"not all of {workers} workers serve after {START_SECONDS} s: {service.output()}")
        time.sleep(LOOK_SECONDS)
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


if __name__ == "__main__":
    main()
