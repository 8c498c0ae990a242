"""Load from several client processes at once: one client in Python is the limit long before several API processes are."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.client import Pool

MEETING_SECONDS = 0.2  # for all clients to be at the start


@dataclass(frozen=True, slots=True)
class Crowd:
    processes: ProcessPoolExecutor
    clients: int

    def closed(self, port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> int:
        """How many were answered with 200, each connection sending one request after another."""
        share = max(1, connections // self.clients)
        begin = time.monotonic() + MEETING_SECONDS
        parts = [self.processes.submit(_closed, port, requests[i:] + requests[:i], share, begin, seconds) for i in range(self.clients)]
        return sum(part.result() for part in parts)

    def poisson(self, port: int, requests: Sequence[bytes], *, rate: float, seconds: float) -> list[float]:
        """Seconds to each answer with 200, from the moment its request was meant to be sent."""
        begin = time.monotonic() + MEETING_SECONDS
        parts = [self.processes.submit(_poisson, port, requests, rate / self.clients, begin, seconds, seed) for seed in range(self.clients)]
        return [wait for part in parts for wait in part.result()]


@contextmanager
def crowd(clients: int) -> Iterator[Crowd]:
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as processes:
        one = Crowd(processes, clients)
        for ready in [processes.submit(time.sleep, MEETING_SECONDS) for _ in range(clients)]:
            ready.result()
        yield one


def _closed(port: int, requests: Sequence[bytes], connections: int, begin: float, seconds: float) -> int:
    async def all_of_them() -> int:
        await asyncio.sleep(begin - time.monotonic())
        return sum(await asyncio.gather(*(_converse(port, requests[i % len(requests) :] + requests, begin + seconds) for i in range(connections))))

    return asyncio.run(all_of_them())


async def _converse(port: int, requests: Sequence[bytes], end: float) -> int:
    """No more work for an answer than must be: the client shares the machine with the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    answered = sent = 0
    while time.monotonic() < end:
        writer.write(requests[sent % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        answered += head.startswith(b"HTTP/1.1 200")
        sent += 1
    writer.close()
    return answered


def _poisson(port: int, requests: Sequence[bytes], rate: float, begin: float, seconds: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    waits: list[float] = []

    async def ask(pool: Pool, request: bytes, due: float) -> None:
        outcome = await pool.ask(request)
        if outcome.status == 200:
            waits.append(time.monotonic() - due)

    async def stream() -> None:
        pool, due, asked = Pool(port), begin, []
        while (due := due + draw.expovariate(rate)) < begin + seconds:
            await asyncio.sleep(due - time.monotonic())
            asked.append(asyncio.create_task(ask(pool, requests[len(asked) % len(requests)], due)))
        await asyncio.gather(*asked)
        pool.close()

    asyncio.run(stream())
    return waits
