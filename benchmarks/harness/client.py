"""A small HTTP client for load: one keep-alive connection each, no more work than must be, everything that goes wrong is an outcome."""

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass

import orjson

RESET = 0  # in place of a status: the connection ended without an answer
ANSWER_SECONDS = 180.0  # nobody waits longer for an answer: a server that hangs ends a benchmark
TIMING = re.compile(rb"(\w+);dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    seconds: float
    head: bytes
    body: bytes

    @property
    def timing(self) -> dict[bytes, float]:
        """Milliseconds by name, as our server tells them in its server-timing header; empty where there is none."""
        return {name: float(spent) for name, spent in TIMING.findall(self.head)}


class Connection:
    """Opened when first used, again after the server closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Outcome:
        began = time.perf_counter()
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
            reader, writer = self._streams
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, there, length = head.partition(b"\r\ncontent-length:")
            body = await reader.readexactly(int(length.partition(b"\r\n")[0])) if there else b""
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Outcome(RESET, time.perf_counter() - began, b"", b"")
        except asyncio.CancelledError:
            self.close()  # its answer may still come: nobody else's request may meet it
            raise
        if b"\r\nconnection: close" in head:
            self.close()
        return Outcome(int(head[9:12]), time.perf_counter() - began, head, body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Pool:
    """Any number of requests at once, on as few connections as that takes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: deque[Connection] = deque()

    async def ask(self, request: bytes) -> Outcome:
        connection = self._idle.pop() if self._idle else Connection(self._port)
        try:
            return await connection.ask(request)
        finally:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


def post(path: str, content: object, **headers: str) -> bytes:
    body = orjson.dumps(content)
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


async def ask_once(port: int, request: bytes) -> Outcome:
    """On a connection of its own."""
    connection = Connection(port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await connection.ask(request)
    except TimeoutError:
        return Outcome(RESET, ANSWER_SECONDS, b"", b"")
    finally:
        connection.close()


async def measured(port: int) -> dict[str, float]:
    """What our server found out at its start: the token budget, its rate."""
    found: dict[str, float] = orjson.loads((await ask_once(port, get("/info"))).body)["measured"]
    return found


async def metrics(port: int) -> dict[str, float]:
    text = (await ask_once(port, get("/metrics"))).body.decode()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    }


def percentile(seconds: list[float], share: float) -> float:
    """Milliseconds; nan of nothing."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
