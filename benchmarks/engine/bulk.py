"""`python -m benchmarks.engine.bulk ARTIFACT`: texts a second of a bulk job, and of the engine on the same tokens.

    engine    the queue, the batcher and the model of an Engine, on texts that were tokenized before
    library   `Engine.embed_all`, text to vector
    job       `run_job` as `packbert bulk` has it, from a file of lines to an array in a file; its reading and
              writing included

The three take turns on the same texts within one run. Seconds of CPU are of the whole process.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.engine.alone import NO_LIMIT_SECONDS, submit
from benchmarks.harness.machine import machine
from benchmarks.harness.mixes import STS_B
from benchmarks.server.scenarios.findings import random_text
from packbert.service.backend import Backend
from packbert.service.library.engine import Engine
from packbert.service.library.job import Job, run_job
from packbert.service.tasks.embed import OPTIONS

Run = Callable[[Sequence[str]], tuple[float, float]]  # gives seconds, and seconds of CPU
REQUEST_TEXTS = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.bulk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    random.seed(5)
    with open_without_limits(asked.artifact) as engine, tempfile.TemporaryDirectory() as folder:
        rounds = [[random_text(max(1, n - 2)) for n in random.choices(STS_B, k=asked.texts // asked.rounds)]]
        rounds += [random.sample(rounds[0], len(rounds[0])) for _ in range(asked.rounds - 1)]
        contenders = {
            "engine": lambda texts: run_tokens(engine, texts),
            "library": lambda texts: run_library(engine, texts),
            "job": lambda texts: run_file(engine, texts, Path(folder)),
        }
        print(json.dumps({"machine": machine(), "texts": asked.texts, "rates": measure(contenders, rounds)}, indent=1))


def open_without_limits(artifact: Path) -> Engine:
    """The engine alone gets all requests of a round at once."""
    return Engine.from_artifact(artifact, max_waiting_tokens=2**31, max_wait_seconds=NO_LIMIT_SECONDS)


def measure(contenders: dict[str, Run], rounds: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Texts a second over all rounds, of the best round, and milliseconds of CPU for 1,000 texts."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    spent = dict.fromkeys(contenders, 0.0)
    for run in contenders.values():
        run(rounds[0][:1000])
    for number, texts in enumerate(rounds):
        turns = list(contenders.items())
        for name, run in turns[number % len(turns) :] + turns[: number % len(turns)]:
            taken, cpu = run(texts)
            seconds[name].append(taken)
            spent[name] += cpu
    count = len(rounds[0])
    return {
        name: {
            "texts_per_second": len(rounds) * count / sum(found),
            "of_best_round": count / min(found),
            "cpu_ms_per_1000": 1e6 * spent[name] / (len(rounds) * count),
        }
        for name, found in seconds.items()
    }


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call, and seconds of CPU of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def run_tokens(engine: Engine, texts: Sequence[str]) -> tuple[float, float]:
    """From submitting all requests to the last answer; their texts are tokenized before."""
    backend = engine.models.default.current
    assert isinstance(backend, Backend)
    options = OPTIONS[backend.artifact.manifest.embedding.pooling]
    work = engine.wait(backend.tokenizer.encode(texts, options, None))
    requests = [work[start : start + REQUEST_TEXTS] for start in range(0, len(work), REQUEST_TEXTS)]

    async def submit_all() -> None:
        await asyncio.gather(*(submit(backend.engine.batcher, one) for one in requests))

    return timed(lambda: engine.wait(submit_all()))


def run_library(engine: Engine, texts: Sequence[str]) -> tuple[float, float]:
    return timed(lambda: deque(engine.embed_all(texts), maxlen=0))


def run_file(engine: Engine, texts: Sequence[str], folder: Path) -> tuple[float, float]:
    source = folder / "in.txt"
    source.write_text("".join(text + "\n" for text in texts), "utf-8")
    job = Job(task="embed", source=source, output=folder / "out.npy")
    return timed(lambda: run_job(job, engine))


if __name__ == "__main__":
    main()
