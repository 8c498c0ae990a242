"""From a hub id to the first answer, BERT-base: the one command against its steps one after another, in turns.

python -m benchmarks.server.first_answer [ROUNDS]
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.harness.checkpoints import checkpoint
from benchmarks.harness.hub import REPOSITORY, FakeHub
from benchmarks.harness.process import ServiceProcess
from packbert.service.settings import variables_with

BODY = json.dumps({"inputs": "hello"})


def main(rounds: int) -> None:
    source = checkpoint("base")
    hub = FakeHub({path.name: path.read_bytes() for path in source.iterdir()})
    taken: dict[str, list[float]] = {}
    with hub.serve():
        for _ in range(rounds):
            for name, seconds in (one_command(hub) | steps(hub)).items():
                taken.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    for name, median in medians.items():
        print(f"{name:14} {median:6.1f} s   of {' '.join(f'{seconds:.1f}' for seconds in taken[name])}")
    print(f"one command / (download + export + start): {medians['one command'] / medians['sum']:.2f}")


def one_command(hub: FakeHub) -> dict[str, float]:
    """Seconds of a first and of a second start."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"BERT_MODEL": REPOSITORY, "BERT_CACHE": f"{folder}/cache", **hub.variables(Path(folder) / "hub")}
        return {"one command": first_answer(settings), "second start": first_answer(settings)}


def steps(hub: FakeHub) -> dict[str, float]:
    """Seconds of each of the commands that do the same, and their sum."""
    with tempfile.TemporaryDirectory() as folder:
        variables, artifact = variables_with(**hub.variables(Path(folder) / "hub")), f"{folder}/artifact"
        begin = time.perf_counter()
        source = _run(["download", REPOSITORY], variables).strip()
        downloaded = time.perf_counter()
        _run(["export", source, artifact], variables)
        exported = time.perf_counter()
        start = first_answer({"BERT_ARTIFACT": artifact})
    taken = {"download": downloaded - begin, "export": exported - downloaded, "start": start}
    return taken | {"sum": sum(taken.values())}


def first_answer(settings: Mapping[str, str]) -> float:
    """Seconds from the start of the process to its first vector."""
    begin = time.perf_counter()
    with ServiceProcess(settings) as process:
        connection = HTTPConnection("127.0.0.1", process.port)
        connection.request("POST", "/embed", BODY)
        answer = connection.getresponse()
        answer.read()
        taken = time.perf_counter() - begin
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the first answer has status {answer.status}")
    return taken


def _run(words: list[str], variables: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "packbert", *words]
    return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
