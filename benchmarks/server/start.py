"""`python -m benchmarks.server.start`: seconds from the command to ready, and memory of one process and of two, without
and with packed weights.

Where an int8 export refuses packed weights (a processor without VNNI or AMX), int8 is measured without them.

The artifacts take turns; their files are in the page cache. Memory is read after every head has been used: `resident`
(Rss), `alone` (Pss: memory that several processes map counts for each with its share), `own` (anonymous Pss, which no
other process shares), and `both` (Pss of two processes of the same artifact together).
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness.checkpoints import SAMPLE, checkpoint
from benchmarks.harness.client import ask_once, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess, memory_mib
from packbert.model_export.export import export

# size of a random checkpoint, precision
SOURCES = {"fp32": ("base", "fp32"), "int8": ("base", "int8"), "bundled": ("", "fp32")}
REQUESTS = [
    ("/embed", {"inputs": [word * n for n in (3, 20, 60) for word in ("paris ", "cat ")] * 2}),
    ("/fill-mask", {"inputs": "paris is [MASK]"}),
    ("/nsp", {"inputs": {"text": "paris", "text_pair": "cat"}}),
]


@dataclass(slots=True)
class Measurements:
    ready_seconds: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)  # MiB, as the rest; of one process
    alone: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    both: list[float] = field(default_factory=list)  # of two processes together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = f"of {', '.join(SOURCES)}; all when none is named"
    parser.add_argument("models", nargs="*", choices=[*SOURCES, []], metavar="MODEL", help=named)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="start", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        artifacts = dict(
            export_one(name, Path(folder), prepacked)
            for name in arguments.models or SOURCES
            for prepacked in (False, True)
        )
        found = {name: Measurements() for name in artifacts}
        for _ in range(arguments.rounds):
            for name, artifact in artifacts.items():
                measure(artifact, found[name])
    columns = list(Measurements.__dataclass_fields__)
    medians = {name: {what: round(median(getattr(one, what)), 2) for what in columns} for name, one in found.items()}
    print(table(["artifact", *columns], [[name, *one.values()] for name, one in medians.items()]))
    if arguments.output != "-":
        update(arguments.output, medians, details={"rounds": arguments.rounds, "memory": "MiB"})


def export_one(name: str, folder: Path, prepacked: bool) -> tuple[str, Path]:
    size, precision = SOURCES[name]
    artifact = folder / f"{name}{', prepacked' * prepacked}"
    export(checkpoint(size) if size else SAMPLE, artifact, precision=precision, prepacked=prepacked)
    return artifact.name, artifact


def measure(artifact: Path, found: Measurements) -> None:
    services = [ServiceProcess({"BERT_MODEL": str(artifact), "BERT_LOG_LEVEL": "warning"}) for _ in range(2)]
    with ExitStack() as stack:
        for service in services:
            started = time.perf_counter()
            stack.enter_context(service)
            found.ready_seconds.append(time.perf_counter() - started)
            send_requests(service)
            if service is services[0]:
                memory = memory_mib(service.process.pid)
                found.resident.append(memory["Rss"])
                found.alone.append(memory["Pss"])
                found.own.append(memory["Pss_Anon"])
        found.both.append(sum(memory_mib(service.process.pid)["Pss"] for service in services))


def send_requests(service: ServiceProcess) -> None:
    for path, body in REQUESTS * 3:
        outcome = asyncio.run(ask_once(service.port, post(path, body)))
        assert outcome.status == 200, outcome


if __name__ == "__main__":
    main()
