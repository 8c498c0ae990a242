"""Several models in one service against a process for each, on the same cores: answers a second, and memory.

python -m benchmarks.server.models [--models 3] [--mix mixed] [--seconds 20] [--turns 3] [--memory-limit SIZE]

The models are BERT-base in int8 with random weights. Each has its own clients, in a closed loop; the two ways take
turns. Memory is the proportional set size after the load, so pages that processes share count once.
"""

import argparse
import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.harness.checkpoints import SEED, artifact
from benchmarks.harness.client import post
from benchmarks.harness.mixes import STS_B, passages
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Cpu, Stream, closed_loop

WARM_UP_SECONDS = 2.0
CONNECTIONS = 4  # of each model
LENGTHS = {"sentences": STS_B, "mixed": [*STS_B, *passages(16), 512, 512]}  # tokens of a model's texts
WORDS = range(5, 30000)  # of the random checkpoint's vocabulary


def requests(name: str, lengths: Sequence[int], seed: int) -> Iterator[bytes]:
    """One text each, for the model `name`."""
    draw = random.Random(seed)
    texts = [" ".join(f"w{word}" for word in draw.choices(WORDS, k=length - 2)) for length in lengths]
    draw.shuffle(texts)
    return itertools.cycle([post("/embed", {"inputs": text, "model": name}) for text in texts])


async def ask(ports: Sequence[int], names: Sequence[str], lengths: Sequence[int], seconds: float) -> Stream:
    """The load on all models at the same time; `ports` are theirs."""
    loops = [
        closed_loop(port, requests(name, lengths, seed), connections=CONNECTIONS, seconds=seconds)
        for seed, (port, name) in enumerate(zip(ports, names, strict=True))
    ]
    return Stream().join(await asyncio.gather(*loops)).must_be()


def memory_mib(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(
    settings: Sequence[dict[str, str]], names: Sequence[str], lengths: Sequence[int], seconds: float
) -> dict[str, float]:
    """Of one service, or of as many as there are models."""
    with ExitStack() as stack:
        services = [stack.enter_context(ServiceProcess(one)) for one in settings]
        ports = [one.port for one in services] * (len(names) // len(services))
        asyncio.run(ask(ports, names, lengths, WARM_UP_SECONDS))
        processes = [one.process.pid for one in services]
        before = [Cpu.of(one) for one in processes]
        stream = asyncio.run(ask(ports, names, lengths, seconds))
        spent = sum(Cpu.of(one).since(was).process for one, was in zip(processes, before, strict=True))
        return {
            "answers a second": stream.rate,
            "processor ms an answer": 1000 * spent / stream.asked,
            "MiB": sum(map(memory_mib, processes)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--mix", choices=LENGTHS, default="mixed", help="sentences, or also passages and documents")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--memory-limit", metavar="SIZE", help="BERT_MEMORY_LIMIT of the one service")
    given = parser.parse_args()
    folders = {f"model-{i}": str(artifact("base", "int8", seed=SEED + i)) for i in range(given.models)}
    one = {"BERT_MODELS": " ".join(f"{name}={folder}" for name, folder in folders.items())}
    if given.memory_limit:
        one["BERT_MEMORY_LIMIT"] = given.memory_limit
    ways = {"one service": [one], "a process each": [{"BERT_ARTIFACT": folder} for folder in folders.values()]}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(given.turns):
        for way, settings in ways.items():
            found[way].append(measure(settings, [*folders], LENGTHS[given.mix], given.seconds))
            print(way, json.dumps(found[way][-1]), flush=True)
    medians = {way: {key: median(turn[key] for turn in turns) for key in turns[0]} for way, turns in found.items()}
    together, apart = medians.values()
    print(json.dumps(medians | {"one / each": {key: together[key] / apart[key] for key in together}}, indent=1))


if __name__ == "__main__":
    main()
