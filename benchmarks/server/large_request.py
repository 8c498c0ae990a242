"""`python -m benchmarks.server.large_request ARTIFACT`: one request of 1,000 texts beside 16 clients of single texts.

LangChain's OpenAIEmbeddings sends up to 1,000 texts in a request. Each single client sends a text, waits for its answer
and then for a pause. They run alone, beside the large request until it is answered, and beside a client that sends the
same texts in requests of 32, one after another. The memory is the service's highest above its rest.
"""

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import orjson

from benchmarks.harness.checkpoints import artifact_to_serve
from benchmarks.harness.client import Connection, percentile, post
from benchmarks.harness.machine import table
from benchmarks.harness.process import ServiceProcess, resident_mib
from packbert.service.artifact import open_artifact

SPLIT = 32
SINGLE_WORDS = 14
LOOK_SECONDS = 0.1
Work = Callable[[int], Awaitable[int]]  # of a port; the number of vectors that came back


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=artifact_to_serve, help="a folder, or fp32 or int8: BERT-base, random weights")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--singles", type=int, default=16)
    parser.add_argument("--pause", type=float, default=1.0, help="of a single client after an answer, in seconds")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the runs without the large request")
    parser.add_argument("--workers", type=int, default=1, help="BERT_WORKERS")
    asked = parser.parse_args()
    words = _words(asked.artifact)
    texts = [" ".join(itertools.islice(words, asked.words)) for _ in range(asked.texts)]
    rows = []
    settings = {"BERT_ARTIFACT": str(asked.artifact.resolve()), "BERT_WORKERS": str(asked.workers)}

    async def one_request(port: int) -> int:
        return await _embed(Connection(port), texts)

    async def split(port: int) -> int:
        connection, count = Connection(port), 0
        for first in itertools.cycle(range(0, len(texts), SPLIT)):
            count += await _embed(connection, texts[first : first + SPLIT])
        return count

    with ServiceProcess(settings) as service:
        for name, work, seconds in (
            ("alone", _nothing, asked.seconds),
            ("beside one request", one_request, None),
            ("beside requests of 32", split, asked.seconds),
        ):
            rest = resident_mib(service.process.pid, children=True)
            run = _measure(service, work, words, asked.singles, asked.pause, seconds)
            took, found, waits, highest = asyncio.run(run)
            shares = [percentile(waits, share) for share in (0.5, 0.9, 0.99)]
            rows.append([name, took, found, len(waits), *shares, highest - rest])
    print(table(["singles", "seconds", "vectors", "answers", "p50 ms", "p90 ms", "p99 ms", "MiB above rest"], rows))


async def _measure(
    service: ServiceProcess, work: Work, words: Iterator[str], singles: int, pause: float, seconds: float | None
) -> tuple[float, int, list[float], float]:
    """The seconds that it took, the vectors of the work, the seconds of each single answer, the most MiB of memory.

    Until the work is done, or for so many `seconds`.
    """
    waits: list[float] = []
    highest = 0.0

    async def single() -> None:
        connection = Connection(service.port)
        await asyncio.sleep(pause * random.random())
        while True:
            text = " ".join(itertools.islice(words, SINGLE_WORDS))
            outcome = await connection.ask(post("/embed", {"inputs": text}))
            if outcome.status != 200:
                raise SystemExit(f"a single text got {outcome.status}: {outcome.body[:300]!r}")
            waits.append(outcome.seconds)
            await asyncio.sleep(pause)

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, resident_mib(service.process.pid, children=True))
            await asyncio.sleep(LOOK_SECONDS)

    began, found = time.monotonic(), 0
    others = [asyncio.ensure_future(one) for one in (*(single() for _ in range(singles)), watch())]
    try:
        async with asyncio.timeout(seconds):
            found = await work(service.port)
    except TimeoutError:
        pass
    finally:
        for other in others:
            other.cancel()
        await asyncio.wait(others)
    return time.monotonic() - began, found, waits, highest


async def _embed(connection: Connection, texts: list[str]) -> int:
    outcome = await connection.ask(post("/v1/embeddings", {"input": texts, "encoding_format": "base64"}))
    if outcome.status != 200:
        raise SystemExit(f"{len(texts)} texts got {outcome.status}: {outcome.body[:300]!r}")
    return len(orjson.loads(outcome.body)["data"])


async def _nothing(_: int) -> int:
    await asyncio.Event().wait()
    return 0


def _words(artifact: Path) -> Iterator[str]:
    """Whole words of the artifact's vocabulary, for ever."""
    vocabulary = orjson.loads(open_artifact(artifact).tokenizer.read_bytes())["model"]["vocab"]
    known, draw = [word for word in vocabulary if word.isascii() and word.isalnum()], random.Random(5)
    while True:
        yield draw.choice(known)


if __name__ == "__main__":
    main()
