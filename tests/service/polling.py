"""Waits for what a running service does, and clients that leave before their answer."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import httpx

from benchmarks.harness.client import values_of

POLL_SECONDS = 0.02
DEADLINE_SECONDS = 90.0  # for what takes some seconds on a quiet machine


def until(holds: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> float:
    """Polls; the seconds it took. The pause leaves the cores to the processes that it waits for."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() < started + seconds
        Event().wait(POLL_SECONDS)
    return time.monotonic() - started


@contextmanager
def repeated(work: Callable[[], object], threads: int = 4) -> Iterator[None]:
    """So many threads do the work again and again until the end of the block."""
    stop = Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            stop.set()
    for one in running:
        one.result()


def scrape(client: httpx.Client) -> dict[str, float]:
    return values_of(client.get("/metrics").text)


def sum_of(metrics: str, series: str) -> float:
    """The sum of the series of a scrape whose names begin so."""
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(series))


def leave_when(
    holds: Callable[[], bool],
    port: int,
    inputs: Sequence[str],
    *,
    clients: int,
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """So many clients post the inputs to /embed, and close their connections when that holds."""
    body = json.dumps({"inputs": inputs}).encode()
    head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    for connection in connections:
        connection.sendall(head + body)
    until(holds, seconds)
    for connection in connections:
        connection.close()
