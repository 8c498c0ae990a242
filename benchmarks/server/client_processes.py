"""The loops of `harness.streams` in several client processes: one client in Python is the limit long before several
workers are."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.harness.streams import Stream, closed_loop, open_loop

START_SECONDS = 0.2  # until all client processes begin together


@dataclass(frozen=True, slots=True)
class ClientProcesses:
    """Running processes that send requests to one server and divide connections and rates among themselves."""

    pool: ProcessPoolExecutor
    count: int

    def closed_loop(self, port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Stream:
        return self._run(port, requests, connections=max(1, connections // self.count), seconds=seconds)

    def open_loop(self, port: int, requests: Sequence[bytes], *, rate: float, seconds: float) -> Stream:
        return self._run(port, requests, rate=rate / self.count, seconds=seconds)

    def _run(self, port: int, requests: Sequence[bytes], **load: Any) -> Stream:
        begin = time.monotonic() + START_SECONDS
        parts = [self.pool.submit(_send, number, begin, port, requests, load) for number in range(self.count)]
        return Stream().join(part.result() for part in parts)


@contextmanager
def client_processes(count: int) -> Iterator[ClientProcesses]:
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for ready in [pool.submit(time.sleep, START_SECONDS) for _ in range(count)]:
            ready.result()
        yield ClientProcesses(pool, count)


def _send(number: int, begin: float, port: int, requests: Sequence[bytes], load: dict[str, Any]) -> Stream:
    time.sleep(begin - time.monotonic())
    if "rate" in load:
        return asyncio.run(open_loop(port, requests, **load, seed=number))
    return asyncio.run(closed_loop(port, itertools.islice(itertools.cycle(requests), number, None), **load))
