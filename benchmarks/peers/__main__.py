"""`python -m benchmarks.peers`: our server beside others, with the same weights, texts and cores, one text a request.

First all vectors are compared (cosine to our fp32), then the servers take turns, some seconds each. The median of the
rounds counts; ratios are medians of each round's own ratio. A server is stopped while others have their turn.
Environments are made under build/peers, at the first run.
"""

import argparse
import itertools
import os
from asyncio import run
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import artifact
from benchmarks.harness.client import startup_measurements
from benchmarks.harness.machine import table, update
from benchmarks.harness.streams import closed_loop
from benchmarks.peers.environments import model
from benchmarks.peers.servers import PEERS, Running, start
from benchmarks.server.__main__ import random_texts

MIXES = ("STS-B", "mixed", "passages", "long tail")
MIN_COSINE = {"ours int8": 0.99}  # 0.999 for the others, which compute in fp32
COMPARED_LENGTHS = [3, 17, 60, 200, 510]  # tokens of the texts that are compared
NOT_BY_DEFAULT = ("infinity torch padded",)  # the slower of two settings
OURS = ("ours fp32", "ours int8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mix", default="", help="only the mixes whose name contains this; the JSON keeps what it has of the others"
    )
    parser.add_argument(
        "--peer",
        nargs="*",
        default=[name for name in PEERS if name not in NOT_BY_DEFAULT],
        help=f"of {', '.join(PEERS)}",
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn, at least")
    parser.add_argument("--least", type=int, default=64, help="requests in each turn, at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="that the servers and this client share")
    parser.add_argument("--output", default="peers", help="name of the JSON file in benchmarks/results")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    wanted = [name for name in PEERS if name in {*OURS, *arguments.peer}]
    ours = artifact("base", "fp32")
    folder, results = model("base", ours / "cpu" / "tokenizer.json"), {}
    with ExitStack() as servers:
        running: dict[str, Running] = {}
        for name in wanted:
            print(f"starting {name}", flush=True)
            running[name] = start(name, folder)
            servers.callback(running[name].end)
        budgets = {name: token_budget(running[name]) for name in OURS}
        cosines = agreement(running, random_texts(ours, COMPARED_LENGTHS, count=len(COMPARED_LENGTHS)))
        for name, lengths in mixes.MIXES.items():
            if name.startswith(MIXES) and arguments.mix in name:
                results[name] = measure(running, random_texts(ours, lengths, count=512), arguments)
    print(table(["cosine to ours fp32", "smallest"], list(cosines.items())))
    for part in ("texts_per_second", "p50_ms", "ours fp32 / peer", "ours int8 / peer"):
        print(
            "\n"
            + table(
                [part, *wanted], [[name, *(result[part][peer] for peer in wanted)] for name, result in results.items()]
            )
        )
    details = {key: getattr(arguments, key) for key in ("connections", "seconds", "least", "rounds", "cores")}
    update(arguments.output, results, details=details | {"cosines": cosines, "token_budgets": budgets})


def token_budget(server: Running) -> float:
    with server.awake() as port:
        return run(startup_measurements(port))["token_budget"]


def agreement(running: Mapping[str, Running], texts: Sequence[str]) -> dict[str, float]:
    """The smallest cosine of each server's vectors to ours in fp32; raises SystemExit if it is too small."""
    known = [running["ours fp32"].vector(text) for text in texts]
    found = {
        name: min(float(server.vector(text) @ one) for text, one in zip(texts, known, strict=True))
        for name, server in running.items()
    }
    for name, cosine in found.items():
        if cosine < MIN_COSINE.get(name, 0.999):
            raise SystemExit(
                f"{name} gives other vectors than ours: cosine {cosine:.5f}; a comparison would be meaningless"
            )
    return found


def measure(running: Mapping[str, Running], texts: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds: texts a second, p50 in ms, and our rate as a multiple of each server's."""
    requests = {name: itertools.cycle([server.peer.ask(text) for text in texts]) for name, server in running.items()}
    rounds: list[dict[str, float]] = []
    waits: list[dict[str, float]] = []
    for name, server in running.items():
        with server.awake() as port:  # warms up
            run(
                closed_loop(
                    port, requests[name], connections=arguments.connections, seconds=0.0, least=arguments.connections
                )
            ).must_be()
    for _ in range(arguments.rounds):
        rates, p50 = {}, {}
        for name, server in running.items():
            with server.awake() as port:
                turn = closed_loop(
                    port,
                    requests[name],
                    connections=arguments.connections,
                    seconds=arguments.seconds,
                    least=arguments.least,
                )
                stream = run(turn).must_be()
            rates[name], p50[name] = stream.rate, 1000 * median(stream.answered)
        rounds.append(rates)
        waits.append(p50)
    ratios = {
        f"{own} / peer": {name: median(one[own] / one[name] for one in rounds) for name in running} for own in OURS
    }
    medians = {name: median(one[name] for one in rounds) for name in running}
    return {
        "texts_per_second": medians,
        "p50_ms": {name: median(one[name] for one in waits) for name in running},
    } | ratios


if __name__ == "__main__":
    main()
