"""`python -m benchmarks.server.versions OTHER_CHECKOUT`: two versions of the service, in turns in one run.

Starts this checkout's service and the other's, each on an artifact of its own exporter, and sends the same requests
to both in turns: closed loop, one text of STS-B's lengths a request. Prints the ratio of the rates.
`--answers` compares the bodies of all routes' answers instead, valid and refused ones, and prints what differs.
`--cost` prints instead what a request costs both around a model that computes nothing (`null_model.py`): microseconds
of processor time of the process, by number of connections, and answers a second.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import BUILD, SAMPLE, checkpoint
from benchmarks.harness.client import ask_once, get, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost
from benchmarks.server.__main__ import mask_first_word, random_texts

HERE = Path(__file__).parents[2]
CONNECTIONS = 32
MODELS: dict[str, tuple[Path | str, str]] = {"bundled fp32": (SAMPLE, "fp32"), "BERT-base int8": ("base", "int8")}
TEXTS = [
    "my dog is hairy",
    "我喜欢机器学习。",
    "a",
    "x " * 700,
    "",
    "\u200b",
    "paris is the capital of [MASK].",
    "[MASK] [MASK]",
]
BODIES: dict[str, list[object]] = {
    "/embed": [
        *({"inputs": text} for text in TEXTS),
        *(
            {"inputs": text, "truncate": True, "truncation_direction": side}
            for text in TEXTS
            for side in ("left", "Right")
        ),
        {"inputs": TEXTS[:3], "pooling": "mean", "normalize": True},
        {"inputs": TEXTS[:3], "pooling": "pooler", "dimensions": 5},
        {"inputs": [], "x": 1},
        {"inputs": [1]},
        {"inputs": "a", "dimensions": 10**6},
        {"inputs": "a", "prompt_name": None},
        {"inputs": "a", "prompt_name": "query"},
        {},
        [],
        "a",
        {"inputs": ["a"] * 3000},
    ],
    "/fill-mask": [
        *({"inputs": text, "top_k": 3} for text in TEXTS),
        {"inputs": TEXTS[-2:], "targets": ["france", "italy", "unhappy"]},
        {"inputs": TEXTS[-2:], "targets": ["france", "unhappy"], "first_piece": True},
        {"inputs": TEXTS[-2], "parameters": {"top_k": 2}, "top_k": 1},
        {"inputs": TEXTS[-2], "top_k": 10**6},
        {"inputs": TEXTS[-2], "targets": []},
        {"inputs": TEXTS[-2], "targets": ["", " "]},
    ],
    "/nsp": [
        {"inputs": {"text": "我喜欢机器学习。", "text_pair": "因为它很有趣。"}},
        {"inputs": [["a", "b"], {"text": "c", "text_pair": "d"}]},
        {"inputs": [["a"]]},
        {"inputs": []},
        {"inputs": [["a", "b"], ["", "d"]]},
    ],
    "/v1/embeddings": [
        {"input": TEXTS[:2], "model": "m"},
        {"input": "a", "encoding_format": "base64", "dimensions": 4},
        {"input": ""},
        {"input": [1, 2]},
        {},
    ],
    "/predict": [{"inputs": "a"}, {"inputs": [["a"], ["a", "b"]]}, {}],
    "/tag": [{"inputs": "a"}, {}],
    "/none": [{}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of the other checkout")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one turn")
    parser.add_argument("--answers", action="store_true", help="compare answers, not rates")
    parser.add_argument("--cost", action="store_true", help="compare processor time without the model, not rates")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 500, 1000], help="with --cost")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    asked = parser.parse_args()
    for name in asked.model or MODELS:
        with ExitStack() as stack:
            module = "benchmarks.harness.null_model" if asked.cost else ""
            roots = (HERE, asked.other.resolve())
            ours, others = (stack.enter_context(_served(name, root, module)) for root in roots)
            if asked.cost:
                _compare_costs(name, ours, others, asked)
            elif asked.answers:
                asyncio.run(_compare(name, ours.port, others.port))
            else:
                _race(name, ours.port, others.port, rounds=asked.rounds, seconds=asked.seconds)


def _served(name: str, root: Path, module: str) -> ServiceProcess:
    """The service of the checkout `root`, or its `module`, on an artifact that its own exporter writes."""
    module = module or ("packbert.service" if (root / "packbert").is_dir() else "service")
    source, precision = MODELS[name]
    folder = _artifact(name, root)
    environment = {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    checkpoint_folder = source if isinstance(source, Path) else checkpoint(source).resolve()
    shutil.rmtree(folder, ignore_errors=True)  # of another version of that checkout
    exporter = "packbert.model_export" if (root / "packbert").is_dir() else "model_export"
    command = [sys.executable, "-m", exporter, str(checkpoint_folder), str(folder), "--precision", precision]
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    return ServiceProcess({"BERT_ARTIFACT": str(folder), "BERT_LOG_LEVEL": "warning"} | environment, module=module)


def _artifact(name: str, root: Path) -> Path:
    return (BUILD / f"versions-{'ours' if root == HERE else 'other'}-{name.replace(' ', '-')}").resolve()


def _race(name: str, ours: int, others: int, *, rounds: int, seconds: float) -> None:
    """Prints, for each route, the median over the rounds of this version's rate divided by the other's."""
    texts = random_texts(_artifact(name, HERE), mixes.STS_B, count=512)
    routes = {"/embed": texts, "/fill-mask": [mask_first_word(text) for text in texts]}
    rows = []
    for path, inputs in routes.items():
        requests = [post(path, {"inputs": text}) for text in inputs]
        rates: dict[int, list[float]] = {ours: [], others: []}
        for turn in range(rounds):
            for port in (ours, others) if turn % 2 else (others, ours):
                stream = closed_loop(port, itertools.cycle(requests), connections=CONNECTIONS, seconds=seconds)
                rates[port].append(asyncio.run(stream).must_be().rate)
        ratios = [one / other for one, other in zip(rates[ours], rates[others], strict=True)]
        medians = (statistics.median(one) for one in (rates[ours], rates[others], ratios))
        rows.append([name, path, *(f"{one:.3g}" for one in medians), f"{min(ratios):.2f} to {max(ratios):.2f}"])
    print(table(["model", "route", "this, 1/s", "other, 1/s", "ratio", "ratios of the rounds"], rows))


def _compare_costs(name: str, ours: ServiceProcess, others: ServiceProcess, asked: argparse.Namespace) -> None:
    """Prints and writes, for each number of connections, the medians of both versions and of the rounds' ratios."""
    texts = random_texts(_artifact(name, HERE), mixes.STS_B, count=512)
    requests = itertools.cycle([post("/embed", {"inputs": text}) for text in texts])
    results: dict[str, dict[str, float]] = {}
    for connections in asked.connections:

        def run(port: int, connections: int = connections) -> Stream:
            stream = closed_loop(port, requests, connections=connections, seconds=asked.seconds)
            return asyncio.run(stream).must_be()

        found: dict[int, list[tuple[float, float]]] = {ours.port: [], others.port: []}
        for turn in range(-1, asked.rounds):  # the first one warms up
            for server in (ours, others) if turn % 2 else (others, ours):
                stream, spent = cost(server.process.pid, partial(run, server.port))
                found[server.port] += [(spent["process"], stream.rate)] * (turn >= 0)
        both = list(zip(found[ours.port], found[others.port], strict=True))
        columns = results[str(connections)] = {}
        for i, unit in enumerate(("us", "1/s")):
            columns[f"this, {unit}"] = statistics.median(one[i] for one, _ in both)
            columns[f"other, {unit}"] = statistics.median(other[i] for _, other in both)
            columns[f"ratio, {unit}"] = statistics.median(one[i] / other[i] for one, other in both)
    columns_of_all = [[name, connections, *columns.values()] for connections, columns in results.items()]
    print(table(["model", "connections", *columns], columns_of_all))
    update("versions-cost", {name: results}, details={"seconds": asked.seconds, "rounds": asked.rounds})


async def _compare(name: str, ours: int, others: int) -> None:
    differing = total = 0
    for path, bodies in BODIES.items():
        for body in bodies:
            total += 1
            request = post(path, body, **{"x-request-id": "one"})
            one, other = [await ask_once(port, request) for port in (ours, others)]
            if (one.status, one.body) != (other.status, other.body):
                differing += 1
                print(f"{path} {str(body)[:80]}")
                print(f"   this  {one.status} {one.body[:300]!r}\n   other {other.status} {other.body[:300]!r}")
    for path in ("/health", "/ready", "/info", "/openapi.json", "/none"):
        one, other = [await ask_once(port, get(path)) for port in (ours, others)]
        print(f"GET {path}: {'equal' if one.body == other.body else 'differs'}")
    print(f"{name}: {differing} of {total} answers differ")


if __name__ == "__main__":
    main()
