"""Streams of requests to a server on this machine, and what they cost: closed loop, Poisson open loop, processor time by thread.

Knows HTTP and clocks; knows nothing of models.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client import Connection, Outcome, Pool

TIMING = "server-timing"  # the header in which our server says what a request cost it


@dataclass(slots=True)
class Stream:
    """What came of a stream: answers with status 200, in `seconds`."""

    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)  # seconds from each request's moment to its answer
    refused: int = 0
    tokenize_seconds: float = 0.0  # as the server says, where it does

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.waits) / self.seconds

    def note(self, outcome: Outcome, wait: float) -> None:
        if outcome.status != 200:
            self.refused += 1
            return
        self.waits.append(wait)
        if TIMING in outcome.headers:
            self.tokenize_seconds += tokenize_seconds(outcome.headers[TIMING])


async def closed_loop(port: int, requests: Iterator[bytes], *, connections: int, seconds: float, least: int = 0) -> Stream:
    """As many requests at once as there are connections, each followed by the next, for so long and at least so many.

    The time counts to the last answer. Raises SystemExit where one is not 200.
    """
    started, stream, asked = time.monotonic(), Stream(), itertools.count()

    async def one() -> None:
        connection = Connection(port)
        while next(asked) < least or time.monotonic() < started + seconds:
            outcome = await connection.ask(next(requests))
            if outcome.status != 200:
                raise SystemExit(f"the server answered {outcome.status}: {outcome.body[:200]!r}")
            stream.note(outcome, outcome.seconds)
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    stream.seconds = time.monotonic() - started
    return stream


async def open_loop(port: int, requests: Sequence[bytes], *, rate: float, seconds: float) -> Stream:
    """A Poisson stream; a wait counts from the moment the request was meant to be sent."""
    draw, pool, stream = random.Random(11), Pool(port), Stream()

    async def one(request: bytes, due: float) -> None:
        outcome = await pool.ask(request)
        stream.note(outcome, time.monotonic() - due)

    tasks: list[asyncio.Task[None]] = []
    due = started = time.monotonic()
    while due < started + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(one(requests[len(tasks) % len(requests)], due)))
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    pool.close()
    stream.seconds = time.monotonic() - started
    return stream


def tokenize_seconds(timing: str) -> float:
    """Of a Server-Timing header: `tokenize;dur=0.033, queue;dur=...`, in milliseconds there."""
    parts = dict(part.split(";dur=", 1) for part in timing.split(", ") if ";dur=" in part)
    return float(parts.get("tokenize", 0.0)) / 1000


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of processor time so far: of a whole process, and of its first thread, which turns the event loop."""

    process: float
    loop: float

    @classmethod
    def of(cls, process: int) -> "Cpu":
        """From the scheduler's own count, in nanoseconds, where Linux keeps one."""
        spent = {path.parent.name: int(path.read_text().split()[0]) / 1e9 for path in Path(f"/proc/{process}/task").glob("*/schedstat")}
        return cls(sum(spent.values()), spent[str(process)])

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(self.process - before.process, self.loop - before.loop)
