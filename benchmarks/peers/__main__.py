"""`python -m benchmarks.peers`: our server beside others, with the same weights, texts and cores, one text a request.

First all vectors are compared (cosine to our fp32). Then, for each mix and number of connections, the servers take
turns; a server is stopped while others have theirs. Medians of the rounds count; ratios are medians of each round's
own. Environments are made under build/peers at the first run.
"""

import argparse
import itertools
import os
import time
from asyncio import run
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import artifact
from benchmarks.harness.client import percentile
from benchmarks.harness.machine import table, update
from benchmarks.harness.streams import closed_loop
from benchmarks.peers.environments import model
from benchmarks.peers.servers import PEERS, Running, start
from benchmarks.server.__main__ import random_texts

MIXES = [name for name in mixes.MIXES if name.startswith(("STS-B", "passages", "long tail"))]
REQUESTS = {1: 32, 8: 64, 32: 64, 128: 128}  # connections -> requests of a turn, at least
MIN_COSINE = {"fp32": 0.999, "int8": 0.99}
COMPARED_LENGTHS = [3, 17, 60, 200, 510]  # tokens of the texts that are compared
OURS = ("ours fp32", "ours int8")
Figures = Mapping[str, float]  # of one turn
Cell = Mapping[str, Figures]  # contender -> figures


def main() -> None:
    arguments = parse_arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    ours, _ = (artifact("base", precision) for precision in ("fp32", "int8"))
    folder = model("base", ours / "cpu" / "tokenizer.json")
    result: dict[str, dict[str, Any]] = {mix: {} for mix in MIXES if arguments.mix in mix}
    with ExitStack() as servers:
        running: dict[str, Running] = {}
        for name in dict.fromkeys([*OURS, *arguments.peer]):
            print(f"starting {name}", flush=True)
            running[name] = start(name, folder)
            servers.callback(running[name].end)
        cosines = agreement(running, random_texts(ours, COMPARED_LENGTHS, count=len(COMPARED_LENGTHS)))
        for mix, connections in itertools.product(result, arguments.connections):
            texts, began = random_texts(ours, mixes.MIXES[mix], count=512), time.monotonic()
            rounds = [
                {peer: turn(server, texts, connections, arguments.turn) for peer, server in running.items()}
                for _ in range(arguments.rounds)
            ]
            result[mix][str(connections)] = summary(rounds)
            title = f"{mix}, {connections} connections"
            print(f"\n{report(title, result[mix][str(connections)])}\n{time.monotonic() - began:.0f} s", flush=True)
    if arguments.output != "-":
        details = {name: getattr(arguments, name) for name in ("rounds", "turn", "cores")}
        update(arguments.output, result, details=details | {"cosines": cosines})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs="*", default=list(PEERS), help="beside ours")
    parser.add_argument("--mix", default="", help="only the mixes whose name contains this; the JSON keeps the others")
    parser.add_argument("--connections", type=int, nargs="+", choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--turn", type=float, default=2.0, help="seconds of each turn, at least")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2, help="that the servers and this client share")
    parser.add_argument("--output", default="peers", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


def agreement(running: Mapping[str, Running], texts: Sequence[str]) -> dict[str, float]:
    """The smallest cosine of each server's vectors to ours in fp32; raises SystemExit if it is too small."""
    known = [running["ours fp32"].vector(text) for text in texts]
    found = {
        name: min(float(server.vector(text) @ one) for text, one in zip(texts, known, strict=True))
        for name, server in running.items()
    }
    for name, cosine in found.items():
        if cosine < MIN_COSINE["int8" if name.endswith("int8") else "fp32"]:
            raise SystemExit(
                f"{name} gives other vectors than ours: cosine {cosine:.5f}; a comparison would be meaningless"
            )
    return found


def turn(server: Running, texts: Iterable[str], connections: int, seconds: float) -> Figures:
    """What one server does in its turn, which begins with the first of the texts."""
    requests = itertools.cycle([server.peer.ask(text) for text in texts])
    with server.awake() as port:
        before = sum(server.spent().values())
        loop = closed_loop(port, requests, connections=connections, seconds=seconds, least=REQUESTS[connections])
        stream = run(loop).must_be()
        spent = sum(server.spent().values()) - before
    return {
        "texts_per_second": stream.rate,
        "p50_ms": percentile(stream.answered, 0.5),
        "p99_ms": percentile(stream.answered, 0.99),
        "processor_ms": 1000 * spent / stream.asked,
        "memory_mib": server.memory_mib(),
    }


def summary(rounds: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Medians of the rounds by figure and contender, and our rate as a multiple of each contender's."""
    figures = {
        figure: {name: median(one[name][figure] for one in rounds) for name in rounds[0]}
        for figure in rounds[0][OURS[0]]
    }
    rate = "texts_per_second"
    ratios = {
        f"{own} / peer": {name: median(one[own][rate] / one[name][rate] for one in rounds) for name in rounds[0]}
        for own in OURS
    }
    return figures | ratios


def report(title: str, figures: Mapping[str, Figures]) -> str:
    names = list(figures["texts_per_second"])
    return table([title, *figures], [[name, *(one[name] for one in figures.values())] for name in names])


if __name__ == "__main__":
    main()
