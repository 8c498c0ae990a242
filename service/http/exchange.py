"""A request and its response as the application sees them: ASGI's messages, and whether the client is still there."""

import asyncio
import http
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Protocol

import httptools
from starlette.types import ASGIApp, Message

from ..errors import UNEXPECTED, ServiceError
from ..logs import Fields
from .dialects.spec import SERVICE_ERROR
from .limits import BufferedBytes, ConnectionLimits

CONNECTION_KEY = "client_connection"  # in a request's scope["state"]: its connection's ClientConnection
JOINED_BYTES = 2**16  # of a body that is copied behind its head, which takes 3 us: another write takes longer
VISIBLE = bytes({*range(256)} - {*range(0x20), 0x7F} | {0x09})  # what the value of a header may hold
# RFC 9110 renamed three, and Python 3.13 followed
RENAMED = {413: "Content Too Large", 414: "URI Too Long", 422: "Unprocessable Content"}
PHRASES = {each.value: each.phrase for each in http.HTTPStatus} | RENAMED
STATUS_LINES = {status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)}
CODES = {408: "slow", 431: "headers_too_large", 500: "internal", 503: "connections_full"}  # of rejections
WITHOUT_BODY = (204, 304)
log = logging.getLogger("service")


class ClientDisconnected(ServiceError):
    """The connection closed before the response was complete. This error is only counted: nobody can receive it."""

    status, code = 499, "client_closed"

    def __init__(self) -> None:
        super().__init__("the client closed the connection")


@dataclass(slots=True, eq=False)
class ClientConnection:
    """What an endpoint knows of its client's connection, which has a single request at a time.

    As a context manager it cancels its block when the client disconnects, and then raises ClientDisconnected: the
    connection calls `on_disconnect`, so that no second task per request has to wait for it. `buffered` is shared by all
    connections of a process.
    """

    buffered: BufferedBytes = field(default_factory=BufferedBytes)
    disconnected: bool = False
    rejected: bool = False  # by the connection, which counts and logs it: a request whose body is still read
    noted: Fields = field(default_factory=dict)  # by the endpoint of a request, for its line of the access log
    _task: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        if self.disconnected:
            raise ClientDisconnected
        self._task = asyncio.current_task()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None
        if error is asyncio.CancelledError and self.disconnected and task is not None:
            task.uncancel()
            raise ClientDisconnected from None

    def on_disconnect(self) -> None:
        self.disconnected = True
        if self._task is not None:
            self._task.cancel()


class Carrier(Protocol):
    """The connection, as its requests and responses see it."""

    limits: ConnectionLimits
    transport: asyncio.Transport
    client_connection: ClientConnection
    unwritable: asyncio.Event | None  # until it is set, the system accepts no more of a response

    def resume_reading(self) -> None: ...

    def on_response_complete(self, exchange: "Exchange") -> None: ...

    def log_access(self, request_id: str, method: str, route: str, status: int, size: int, **more: Any) -> None: ...

    def close(self) -> None: ...


class Rejected(ServiceError):
    """The connection answers a request itself, and closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, code=CODES.get(status, "malformed"))
        self.status = status


def write_error(error: ServiceError) -> tuple[str, bytes, int]:
    """An id, the response that names it and closes its connection, and the bytes of its body."""
    number = secrets.token_hex(8)
    body = SERVICE_ERROR.write(number, error)
    again = b"retry-after: 1\r\n" if error.status == http.HTTPStatus.SERVICE_UNAVAILABLE else b""
    size = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    headers = b"%b%bx-request-id: %b\r\nconnection: close\r\n\r\n" % (size, again, number.encode())
    return number, STATUS_LINES[error.status] + headers + body, len(body)


@lru_cache(1)
def date_header(second: int) -> tuple[bytes, bytes]:
    return b"date", formatdate(second, usegmt=True).encode()


def split_url(url: bytes) -> tuple[bytes, bytes]:
    """The path, which is empty if the URL has none, and the query."""
    path, _, query = url.partition(b"?")
    if path[:1] == b"/" and b"#" not in url:
        return path, query
    with suppress(httptools.HttpParserError):
        parsed = httptools.parse_url(url)
        if parsed.path:
            return parsed.path, parsed.query or b""
    return b"", b""


class Exchange:
    """A request and its response: `scope`, `receive` and `send` of ASGI."""

    started = complete = False  # the response
    disconnected = False  # also if the connection answers in place of the application
    whole = False  # all of the body has arrived
    _unread = 0  # bytes of the body's parts that are not read
    _read_all = False
    _news: asyncio.Event | None = None  # for `receive`, if it has to wait
    _head: Message | None = None  # of the response, which is written with the first part of its body
    _has_body = True
    _left: int | None = None  # bytes of the response's body; None without a stated length
    _chunked = False
    _status, _id, _sent = 0, b"", 0  # for the access log

    def __init__(self, connection: Carrier, scope: dict[str, Any], *, keep_alive: bool, continues: bool) -> None:
        self.connection, self.scope, self.keep_alive = connection, scope, keep_alive
        self._continues = continues  # the client waits for 100 Continue
        self._parts: list[bytes] = []
        self._began = time.perf_counter()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self.complete and not self.disconnected:
                raise RuntimeError("the application returned without a whole response")
        except Exception:
            log.exception("%s %s failed", self.scope["method"], self.scope["path"])
            self._fail()
        finally:
            if not self.complete and not self.disconnected:
                self.connection.close()  # the response has begun: its client sees that it is not whole
            if self.connection.limits.log_access is not None and not self.connection.client_connection.rejected:
                self._log_access()

    async def receive(self) -> Message:
        """The part of the body that has arrived. Most bodies arrive with their head, and nothing is waited for."""
        if self._continues and not self.started and not self.disconnected:
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._continues = False
        while not (self._parts or self.complete or self.disconnected or (self.whole and not self._read_all)):
            self.connection.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.complete or self.disconnected:
            return {"type": "http.disconnect"}
        parts, self._parts, self._unread, self._read_all = self._parts, [], 0, self.whole
        return {"type": "http.request", "body": b"".join(parts), "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        """Raises RuntimeError for messages out of order, a header with control characters, and a body that does not
        have its stated length."""
        if message["type"] == "http.response.start" and not self.started:
            self._head, self._status = message, message["status"]
            return
        if message["type"] != "http.response.body" or self.complete or (self._head is None and not self.started):
            raise RuntimeError(f"{message['type']} is out of order")
        connection, body, more = self.connection, message.get("body", b""), message.get("more_body", False)
        if connection.unwritable is not None and not self.disconnected:
            await connection.unwritable.wait()
        if self.disconnected:
            return
        start = b"" if self._head is None else self._begin(self._head)
        body = self._frame(body, more=more)
        self._head, self.started, self.complete = None, True, not more
        if start and len(body) > JOINED_BYTES:
            connection.transport.write(start)
            start = b""
        if start or body:
            connection.transport.write(start + body if start else body)
        if not more:
            connection.on_response_complete(self)

    def add(self, part: bytes) -> int:
        """Adds a part of the body, and returns how many bytes of the body are unread."""
        self._parts.append(part)
        self._unread += len(part)
        self.wake()
        return self._unread

    def disconnect(self) -> None:
        self.disconnected = True
        self.wake()

    def wake(self) -> None:
        if self._news is not None:
            self._news.set()

    def _begin(self, head: Message) -> bytes:
        """The head as it is written."""
        headers = [date_header(int(time.time())), *head.get("headers", ())]
        by_name = dict(headers)
        self._has_body = self.scope["method"] != "HEAD" and head["status"] not in WITHOUT_BODY
        if (stated := by_name.get(b"content-length")) is not None:
            self._left = int(stated)
        elif self._has_body and self.scope["http_version"] == "1.1":  # of 1.0: the body ends with the connection
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        text = b"\r\n".join(map(b": ".join, headers))
        if text.translate(None, VISIBLE) != b"\r\n" * (len(headers) - 1):
            raise RuntimeError("a response header holds a control character")
        self._id = by_name.get(b"x-request-id", b"")
        return b"%b%b\r\n\r\n" % (STATUS_LINES[head["status"]], text)

    def _frame(self, body: bytes, *, more: bool) -> bytes:
        """A part of the body as it is written. Raises RuntimeError."""
        if not self._has_body:
            return b""
        self._sent += len(body)
        if self._chunked:
            return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError(f"the body is {-self._left:+} bytes longer than Content-Length states")
        return body

    def _fail(self) -> None:
        """Answers 500 if nothing has been written."""
        if self.started or self.disconnected:
            return
        self.keep_alive, self._status, self.started, self.complete = False, 500, True, True
        number, content, self._sent = write_error(ServiceError(UNEXPECTED))
        self._id = number.encode()
        self.connection.transport.write(content)
        self.connection.on_response_complete(self)

    def _log_access(self) -> None:
        client = self.connection.client_connection
        noted, client.noted = client.noted, {}
        self.connection.log_access(
            self._id.decode("latin-1"),
            self.scope["method"],
            self.scope["root_path"] + self.scope["path"],  # the first is that of a model's name
            self._status if self.complete else ClientDisconnected.status,
            self._sent,
            **noted,
            total_ms=round(1e3 * (time.perf_counter() - self._began), 3),
        )
