"""The loops of `streams` in several client processes at once: one client in Python is the limit long before several API processes are."""

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.harness.streams import Stream, closed_loop, open_loop

CONNECT_GRACE_SECONDS = 0.2  # for all clients to be at the start


@dataclass(frozen=True, slots=True)
class Crowd:
    processes: ProcessPoolExecutor
    clients: int

    def closed_loop(self, port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Stream:
        share, begin = max(1, connections // self.clients), time.monotonic() + CONNECT_GRACE_SECONDS
        return _joined(
            [
                self.processes.submit(_closed, port, requests, share, seconds, begin, number)
                for number in range(self.clients)
            ]
        )

    def open_loop(self, port: int, requests: Sequence[bytes], *, rate: float, seconds: float) -> Stream:
        share, begin = rate / self.clients, time.monotonic() + CONNECT_GRACE_SECONDS
        return _joined(
            [
                self.processes.submit(_poisson, port, requests, share, seconds, begin, number)
                for number in range(self.clients)
            ]
        )


@contextmanager
def crowd(clients: int) -> Iterator[Crowd]:
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as processes:
        one = Crowd(processes, clients)
        for ready in [processes.submit(time.sleep, CONNECT_GRACE_SECONDS) for _ in range(clients)]:
            ready.result()
        yield one


def _joined(parts: Sequence["Future[Stream]"]) -> Stream:
    return Stream().join(part.result() for part in parts)


def _closed(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, begin: float, number: int
) -> Stream:
    mine = itertools.islice(itertools.cycle(requests), number, None)
    return asyncio.run(_at(begin, closed_loop(port, mine, connections=connections, seconds=seconds)))


def _poisson(port: int, requests: Sequence[bytes], rate: float, seconds: float, begin: float, number: int) -> Stream:
    return asyncio.run(_at(begin, open_loop(port, requests, rate=rate, seconds=seconds, seed=number)))


async def _at(moment: float, stream: Coroutine[None, None, Stream]) -> Stream:
    await asyncio.sleep(moment - time.monotonic())
    return await stream
