"""A small HTTP client for load: a keep-alive connection with as little work as possible; failures are outcomes."""

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass

import orjson

RESET = 0  # in place of a status: the connection ended without an answer
ANSWER_SECONDS = 180.0  # the longest wait for an answer, so that a server that hangs ends a benchmark
TIMING = re.compile(rb"(\w+);dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    seconds: float
    head: bytes
    body: bytes

    @property
    def timing(self) -> dict[bytes, float]:
        """Milliseconds by name, from the server-timing header; empty if there is none."""
        return {name: float(spent) for name, spent in TIMING.findall(self.head)}


class Connection:
    """Opens when first used, and again after the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Outcome:
        began = time.perf_counter()
        if self._streams is not None and self._streams[0].at_eof():
            self.close()  # by the server, between two requests
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
            reader, writer = self._streams
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, found, length = head.partition(b"\r\ncontent-length:")
            body = await reader.readexactly(int(length.partition(b"\r\n")[0])) if found else b""
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Outcome(RESET, time.perf_counter() - began, b"", b"")
        except asyncio.CancelledError:
            self.close()  # its answer may still arrive, and must not be taken for the answer to another request
            raise
        if b"\r\nconnection: close" in head:
            self.close()
        return Outcome(int(head[9:12]), time.perf_counter() - began, head, body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Pool:
    """Sends any number of concurrent requests on as few connections as possible."""

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
    """Sends one request on a connection of its own."""
    connection = Connection(port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await connection.ask(request)
    except TimeoutError:
        return Outcome(RESET, ANSWER_SECONDS, b"", b"")
    finally:
        connection.close()


async def metrics(port: int) -> dict[str, float]:
    return values_of((await ask_once(port, get("/metrics"))).body.decode())


def values_of(text: str) -> dict[str, float]:
    """Of a scrape: series, with its labels -> value."""
    lines = text.splitlines()
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines if not one.startswith("#"))}


def percentile(seconds: list[float], share: float) -> float:
    """Milliseconds below which `share` of the values lie; NaN if there are none."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
