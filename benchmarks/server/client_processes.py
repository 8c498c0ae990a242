"""The loops of `harness.streams` in several client processes: one client in Python is the limit long before several
workers are."""

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.harness.streams import Stream, closed_loop, open_loop

START_SECONDS = 0.2  # until all client processes begin together


@dataclass(frozen=True, slots=True)
class ClientProcesses:
    """Running processes that send requests to one server and divide connections and rates among themselves."""

    pool: ProcessPoolExecutor
    count: int

    def closed_loop(self, port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Stream:
        share, begin = max(1, connections // self.count), time.monotonic() + START_SECONDS
        return _join(
            [self.pool.submit(_closed, port, requests, share, seconds, begin, number) for number in range(self.count)]
        )

    def open_loop(self, port: int, requests: Sequence[bytes], *, rate: float, seconds: float) -> Stream:
        share, begin = rate / self.count, time.monotonic() + START_SECONDS
        return _join(
            [self.pool.submit(_poisson, port, requests, share, seconds, begin, number) for number in range(self.count)]
        )


@contextmanager
def client_processes(count: int) -> Iterator[ClientProcesses]:
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for ready in [pool.submit(time.sleep, START_SECONDS) for _ in range(count)]:
            ready.result()
        yield ClientProcesses(pool, count)


def _join(parts: Sequence["Future[Stream]"]) -> Stream:
    return Stream().join(part.result() for part in parts)


def _closed(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, begin: float, number: int
) -> Stream:
    own = itertools.islice(itertools.cycle(requests), number, None)
    return asyncio.run(_start_at(begin, closed_loop(port, own, connections=connections, seconds=seconds)))


def _poisson(port: int, requests: Sequence[bytes], rate: float, seconds: float, begin: float, number: int) -> Stream:
    return asyncio.run(_start_at(begin, open_loop(port, requests, rate=rate, seconds=seconds, seed=number)))


async def _start_at(moment: float, stream: Coroutine[None, None, Stream]) -> Stream:
    await asyncio.sleep(moment - time.monotonic())
    return await stream
