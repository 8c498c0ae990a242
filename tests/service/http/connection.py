"""A connection on a fake transport or on a real socket, before an application that echoes the size of the body."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from packbert.service.http import connection as connection_module
from packbert.service.http.limits import BufferedBytes, ConnectionLimits
from tests.service.fakes import FakeTime, play, settle

POST = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
CHUNKED = b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class FakeTransport(asyncio.Transport):
    protocol: connection_module.Connection

    def __init__(self, protocol: connection_module.Connection) -> None:
        self.protocol = protocol
        self.sockets = socket.socketpair()
        super().__init__({"socket": self.sockets[0]})
        self.written = b""
        self.closed = self.aborted = self.reading_paused = False
        self.unread = 0  # bytes that are written and that the client has not read
        self.most_unread = 2**16  # more of them pause the protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self.most_unread = high or 0

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data
            if self.unread > self.most_unread:
                self.protocol.pause_writing()

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    async def open(self) -> None:
        self.protocol.connection_made(self)

    async def receive(self, piece: bytes) -> None:
        self.protocol.data_received(piece)

    def disconnect(self) -> None:
        self.protocol.connection_lost(ConnectionResetError())

    def abort_or_close(self) -> None:
        for one in self.sockets:
            one.close()


class SocketTransport:
    """asyncio's own, over a pair of sockets."""

    transport: asyncio.Transport

    def __init__(self, protocol: connection_module.Connection) -> None:
        self.protocol = protocol
        self.sockets = socket.socketpair()
        self._written = bytearray()
        for one in self.sockets:
            one.setblocking(False)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.connect_accepted_socket(lambda: self.protocol, self.sockets[0])

    @property
    def written(self) -> bytes:
        with suppress(BlockingIOError, ConnectionResetError):
            while part := self.sockets[1].recv(2**20):
                self._written += part
        return bytes(self._written)

    @property
    def closed(self) -> bool:
        return self.transport.is_closing()

    @property
    def reading_paused(self) -> bool:
        return not self.transport.is_reading()

    async def receive(self, piece: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(self.sockets[1], piece)

    def disconnect(self) -> None:
        with suppress(OSError):  # the server has closed it
            self.sockets[1].shutdown(socket.SHUT_WR)

    def abort_or_close(self) -> None:
        self.transport.abort()
        self.sockets[1].close()


class Client:
    """A connection in front of an application that echoes how many bytes the body has, once `may_respond` is set."""

    def __init__(self, limits: ConnectionLimits, kind: Callable[..., Any] = FakeTransport) -> None:
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []  # of the first request
        self.may_read, self.may_respond = asyncio.Event(), asyncio.Event()
        self.may_read.set()
        self.may_respond.set()
        self.fails = self.answers_early = False
        self.protocol = connection_module.Connection(self.app, limits)
        self.transport: Any = kind(self.protocol)

    async def app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.paths.append(scope["path"])
        self.headers = self.headers or scope["headers"]
        size, more = 0, not self.answers_early
        if self.fails:
            raise ValueError("the application fails")
        await self.may_read.wait()
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await self.may_respond.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]}
        )
        await send({"type": "http.response.body", "body": str(size).encode()})

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closed:
                await self.transport.receive(piece)
            await settle()

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.transport.written.split(b"HTTP/1.1 ")[1:]]

    def error(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.transport.written.rpartition(b"\r\n\r\n")[2])
        assert set(content) == {"error", "error_type", "code", "request_id"}
        return content


def play_connection(
    story: Callable[[Client, FakeTime], Awaitable[None]],
    *,
    rejections: Sequence[tuple[int, str]] = (),
    transports: Sequence[Callable[..., Any]] = (FakeTransport, SocketTransport),
) -> None:
    """Plays the story on each of the transports; `FakeTransport` alone has a client that reads slowly."""

    async def played(time: FakeTime, transport: Callable[..., Any]) -> None:
        counted: list[tuple[int, str]] = []
        limits = ConnectionLimits(
            client_timeout_seconds=5.0,
            max_header_bytes=1000,
            min_read_bytes_per_second=10,
            buffered=BufferedBytes(2**30, lambda: None),
            on_rejected=lambda status, code: counted.append((status, code)),
        )
        connection = Client(limits, transport)
        await connection.transport.open()
        await story(connection, time)
        connection.transport.abort_or_close()
        await settle()
        assert counted == list(rejections)
        assert not (limits.heads or limits.bodies or limits.tasks) or transport is FakeTransport

    for one in transports:
        play(partial(played, transport=one))
