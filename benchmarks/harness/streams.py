"""Sends streams of requests to a server on this machine, as a closed loop or a Poisson open loop, and reads the
processor time that they cost.

Knows HTTP and clocks; knows nothing of models.
"""

import asyncio
import gc
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.harness.client import ANSWER_SECONDS, Connection, Outcome, Pool

Waits = defaultdict[int, list[float]]


@dataclass(slots=True)
class Stream:
    """The outcome of a stream of requests."""

    seconds: float = 0.0  # to the last answer
    waits: Waits = field(default_factory=lambda: defaultdict(list))  # status -> seconds from sending to the answer
    last_error: bytes = b""  # the body of the newest answer with another status than 200
    tokenize_seconds: float = 0.0  # from the server-timing headers

    @property
    def answered(self) -> list[float]:
        """Seconds of each answer with status 200."""
        return self.waits[200]

    @property
    def asked(self) -> int:
        return sum(map(len, self.waits.values()))

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return len(self.answered) / self.seconds

    def note(self, outcome: Outcome, wait: float) -> None:
        self.waits[outcome.status].append(wait)
        if outcome.status == 200:
            self.tokenize_seconds += outcome.timing.get(b"tokenize", 0.0) / 1000
        else:
            self.last_error = outcome.body[:200]

    def join(self, others: Iterable["Stream"]) -> Self:
        """Itself, with the outcomes of streams that ran at the same time."""
        for other in others:
            self.seconds = max(self.seconds, other.seconds)
            self.tokenize_seconds += other.tokenize_seconds
            self.last_error = self.last_error or other.last_error
            for status, waits in other.waits.items():
                self.waits[status] += waits
        return self

    def must_be(self, status: int = 200) -> Self:
        """Itself; raises SystemExit if an answer had another status: a refusal is quick, and would count as speed."""
        if others := {found: len(waits) for found, waits in self.waits.items() if waits and found != status}:
            raise SystemExit(
                f"{sum(others.values())} of {self.asked} answers are not {status} ({others}): {self.last_error!r}"
            )
        return self


async def closed_loop(
    port: int, requests: Iterator[bytes], *, connections: int, seconds: float, least: int = 0
) -> Stream:
    """Each connection sends its next request after an answer, for `seconds` and until `least` requests are sent."""
    started, stream, asked = time.monotonic(), Stream(), itertools.count()

    async def one() -> None:
        connection = Connection(port)
        while next(asked) < least or time.monotonic() < started + seconds:
            outcome = await connection.ask(next(requests))
            stream.note(outcome, outcome.seconds)
        connection.close()

    async with asyncio.timeout(seconds + ANSWER_SECONDS):
        await asyncio.gather(*(one() for _ in range(connections)))
    stream.seconds = time.monotonic() - started
    return stream


async def open_loop(port: int, requests: Sequence[bytes], *, rate: float, seconds: float, seed: int = 11) -> Stream:
    """A Poisson stream of `rate` requests a second; a wait counts from the moment the request was meant to be sent."""
    draw, pool, stream = random.Random(seed), Pool(port), Stream()

    async def one(request: bytes, due: float) -> None:
        outcome = await pool.ask(request)
        stream.note(outcome, time.monotonic() - due)

    tasks: list[asyncio.Task[None]] = []
    with _without_collector_pauses():
        due = started = time.monotonic()
        while due < started + seconds:
            await asyncio.sleep(due - time.monotonic())
            tasks.append(asyncio.create_task(one(requests[len(tasks) % len(requests)], due)))
            due += draw.expovariate(rate)
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*tasks)
    pool.close()
    stream.seconds = time.monotonic() - started
    return stream


@contextmanager
def _without_collector_pauses() -> Iterator[None]:
    """Excludes existing objects from garbage collection: the client's own pauses are not the server's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of processor time so far: of a whole process, and of its first thread, which runs the event loop."""

    process: float
    loop: float

    @classmethod
    def of(cls, process: int) -> "Cpu":
        """From the Linux scheduler's count, which is in nanoseconds."""
        spent = {
            path.parent.name: int(path.read_text().split()[0]) / 1e9
            for path in Path(f"/proc/{process}/task").glob("*/schedstat")
        }
        return cls(sum(spent.values()), spent[str(process)])

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(self.process - before.process, self.loop - before.loop)


def cost(process: int, run: Callable[[], Stream]) -> tuple[Stream, dict[str, float]]:
    """The outcome of a stream to the server `process`, and microseconds of processor time a request: of the process, of
    its event loop, of tokenizing within that, and of this client."""
    before, own = Cpu.of(process), time.process_time()
    stream = run()
    client, spent, share = time.process_time() - own, Cpu.of(process).since(before), 1e6 / stream.asked
    parts = {"process": spent.process, "loop": spent.loop, "tokenizing": stream.tokenize_seconds, "client": client}
    return stream, {name: share * seconds for name, seconds in parts.items()}
