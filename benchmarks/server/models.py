"""Several models in one service against a process for each, on the same cores: answers a second, and memory.

python -m benchmarks.server.models [--models 3] [--mix mixed] [--seconds 6] [--turns 12] [--memory-limit SIZE]

The models are BERT-base in int8 with random weights. Each has its own clients, in a closed loop. All services stay
open, and the two ways are asked in turns. Of the memory of processes, pages of files, which they share, count once.
"""

import argparse
import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.checkpoints import SEED, artifact
from benchmarks.harness.client import post
from benchmarks.harness.mixes import STS_B, passages
from benchmarks.harness.process import ServiceProcess, memory_mib
from benchmarks.harness.streams import Cpu, Stream, closed_loop

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


@dataclass(frozen=True, slots=True)
class Way:
    """The services of all models: one for each, or one for all."""

    services: Sequence[ServiceProcess]
    names: Sequence[str]
    lengths: Sequence[int]

    def measure(self, seconds: float) -> dict[str, float]:
        ports = [one.port for one in self.services] * (len(self.names) // len(self.services))
        before = [Cpu.of(one.process.pid) for one in self.services]
        stream = asyncio.run(ask(ports, self.names, self.lengths, seconds))
        spent = [Cpu.of(one.process.pid).since(was).process for one, was in zip(self.services, before, strict=True)]
        return {
            "answers a second": stream.rate,
            "processor ms an answer": 1000 * sum(spent) / stream.asked,
            "MiB": self.memory(),
        }

    def memory(self) -> float:
        each = [memory_mib(one.process.pid) for one in self.services]
        own = [one["Pss_Anon"] + one["Pss_Shmem"] for one in each]
        return sum(own) + max(one["Rss"] - mine for one, mine in zip(each, own, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--mix", choices=LENGTHS, default="mixed", help="sentences, or also passages and documents")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--memory-limit", metavar="SIZE", help="BERT_MEMORY_LIMIT of the one service")
    given = parser.parse_args()
    folders = {f"model-{i}": str(artifact("base", "int8", seed=SEED + i)) for i in range(given.models)}
    one = {"BERT_MODELS": " ".join(f"{name}={folder}" for name, folder in folders.items())}
    if given.memory_limit:
        one["BERT_MEMORY_LIMIT"] = given.memory_limit
    settings = {"one service": [one], "a process each": [{"BERT_ARTIFACT": folder} for folder in folders.values()]}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in settings}
    with ExitStack() as stack:
        ways = {
            name: Way([stack.enter_context(ServiceProcess(each)) for each in of_each], [*folders], LENGTHS[given.mix])
            for name, of_each in settings.items()
        }
        for turn in range(given.turns + 1):  # the first warms up
            for name in [*ways][:: 1 if turn % 2 else -1]:
                found[name].append(ways[name].measure(given.seconds))
                print(name, json.dumps(found[name][-1]), flush=True)
    counted = {name: turns[1:] for name, turns in found.items()}
    medians = {name: {key: median(turn[key] for turn in turns) for key in turns[0]} for name, turns in counted.items()}
    pairs = [*zip(*counted.values(), strict=True)]
    ratios = {key: median(one[key] / each[key] for one, each in pairs) for key in pairs[0][0]}
    print(json.dumps(medians | {"one / each, in the same turn": ratios}, indent=1))


if __name__ == "__main__":
    main()
