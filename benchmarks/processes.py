"""`python -m benchmarks.processes`: requests a second and the processor time of each process, by the number of API processes.

A closed loop over loopback: each connection sends one short text after another. The model is the tiny one of the tests, so that the
model is not what is measured. Load and service share this machine's cores: with few of them requests a second say little of what more processes
are good for. Microseconds of processor time a request say more: what an API process takes per request says how many of them an engine
can feed before its own share of a request makes it the narrow place.
"""

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import table, write
from model_export.export import export
from tests.process import ServiceProcess

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "bert"
TICKS = os.sysconf("SC_CLK_TCK")
WARMING_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    api_processes: int
    texts: int  # a request
    connections: int
    requests_per_second: float
    engine_us: float  # processor time a request; with 0 API processes that of the one process
    api_us: float  # a request, in all API processes together
    busiest: float  # of the API processes: its share of their work


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 32], help="in a request")
    parser.add_argument("--output", default="processes", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "artifact"
        export(GOLDEN, artifact, precision="fp32")
        for processes in arguments.processes:
            settings = {"BERT_ARTIFACT": str(artifact), "BERT_API_PROCESSES": str(processes), "BERT_LOG_LEVEL": "warning"}
            with ServiceProcess(settings) as service:
                for texts in arguments.texts:
                    findings.append(measure(service, processes, texts, arguments.connections, arguments.seconds))
                    print(findings[-1], flush=True)
    rows = [list(asdict(finding).values()) for finding in findings]
    print(table(list(Finding.__dataclass_fields__), [[f"{value:.4g}" for value in row] for row in rows]))
    if arguments.output != "-":
        write(arguments.output, [asdict(finding) for finding in findings])


def measure(service: ServiceProcess, processes: int, texts: int, connections: int, seconds: float) -> Finding:
    pids = children(service.process.pid)
    engine = pids.pop("engine", service.process.pid)
    asyncio.run(load(service.port, texts, connections, WARMING_SECONDS))
    before = {pid: processor_seconds(pid) for pid in (engine, *pids.values())}
    started = time.monotonic()
    answered = asyncio.run(load(service.port, texts, connections, seconds))
    took = time.monotonic() - started
    used = {pid: processor_seconds(pid) - before[pid] for pid in before}
    apis = [used[pid] for pid in pids.values()]
    return Finding(
        api_processes=processes,
        texts=texts,
        connections=connections,
        requests_per_second=answered / took,
        engine_us=used[engine] / answered * 1e6,
        api_us=sum(apis) / answered * 1e6,
        busiest=max(apis) / sum(apis) if apis else 1.0,
    )


def children(pid: int) -> dict[str, int]:
    """Name -> process id of a supervisor's children."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        named = next((word for word in words if word.startswith('{"name":"')), "")
        if named:
            found[named.split('"')[3]] = int(child)
    return found


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def load(port: int, texts: int, connections: int, seconds: float) -> int:
    """How many requests were answered with 200."""
    inputs = ", ".join(['"the cat sat on the mat"'] * texts)
    body = f'{{"inputs": [{inputs}]}}'.encode()
    request = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    end = time.monotonic() + seconds
    return sum(await asyncio.gather(*(converse(port, request, end) for _ in range(connections))))


async def converse(port: int, request: bytes, end: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = 0
    while time.monotonic() < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        answered += head.startswith(b"HTTP/1.1 200")
    writer.close()
    return answered


if __name__ == "__main__":
    main()
