"""`python -m benchmarks.server.processes`: requests a second and processor time, by the number of API processes.

A closed loop over loopback: each connection of each client process sends one short text after another. The model is the
tiny one of the tests, so that the model is not what is measured. Load and service share this machine's cores; with few
cores, requests a second say little about what more processes bring. Microseconds of processor time a request say more:
the times of an API process and of the engine show how many API processes one engine can serve.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.client import post
from benchmarks.harness.machine import table, write
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Cpu
from benchmarks.server.client_processes import ClientProcesses, client_processes
from packbert.model_export.export import export

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "bert"
WARM_UP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    api_processes: int
    texts: int  # in a request
    connections: int
    requests_per_second: float
    engine_us: float  # processor time a request; with 0 API processes, of the only process
    api_us: float  # a request, in all API processes together
    busiest: float  # share of the API processes' work that the busiest of them does


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.processes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 32], help="in a request")
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--output", default="processes", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    findings = []
    with tempfile.TemporaryDirectory() as folder, client_processes(arguments.clients) as clients:
        artifact = Path(folder) / "artifact"
        export(GOLDEN, artifact, precision="fp32")
        for processes in arguments.processes:
            settings = {
                "BERT_ARTIFACT": str(artifact),
                "BERT_API_PROCESSES": str(processes),
                "BERT_LOG_LEVEL": "warning",
            }
            with ServiceProcess(settings) as service:
                for texts in arguments.texts:
                    requests = [post("/embed", {"inputs": ["the cat sat on the mat"] * texts})]
                    load = Load(
                        requests=requests, texts=texts, connections=arguments.connections, seconds=arguments.seconds
                    )
                    findings.append(measure(service, processes, load, clients))
                    print(findings[-1], flush=True)
    rows = [list(asdict(finding).values()) for finding in findings]
    print(table(list(Finding.__dataclass_fields__), [[f"{value:.4g}" for value in row] for row in rows]))
    if arguments.output != "-":
        write(arguments.output, [asdict(finding) for finding in findings])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    requests: Sequence[bytes]
    texts: int  # in each of them
    connections: int
    seconds: float


def measure(service: ServiceProcess, processes: int, load: Load, clients: ClientProcesses) -> Finding:
    pids = children(service.process.pid)
    engine = pids.pop("engine", service.process.pid)
    clients.closed_loop(service.port, load.requests, connections=load.connections, seconds=WARM_UP_SECONDS)
    before = {pid: Cpu.of(pid) for pid in (engine, *pids.values())}
    stream = clients.closed_loop(service.port, load.requests, connections=load.connections, seconds=load.seconds)
    used = {pid: Cpu.of(pid).since(before[pid]).process for pid in before}
    answered = len(stream.answered)
    apis = [used[pid] for pid in pids.values()]
    return Finding(
        api_processes=processes,
        texts=load.texts,
        connections=load.connections,
        requests_per_second=stream.rate,
        engine_us=used[engine] / answered * 1e6,
        api_us=sum(apis) / answered * 1e6,
        busiest=max(apis) / sum(apis) if apis else 1.0,
    )


def children(pid: int) -> dict[str, int]:
    """Name -> process id of the children of the supervisor `pid`."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        named = next((word for word in words if word.startswith('{"name":"')), "")
        if named:
            found[named.split('"')[3]] = int(child)
    return found


if __name__ == "__main__":
    main()
