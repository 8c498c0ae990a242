"""The HTTP request of a task: what its endpoint reads of it, and how the endpoint responds. Does not know the tasks."""

import random
import re
import time

from starlette.types import Receive, Scope, Send

from service.errors import Invalid, ServiceError, TooLarge
from service.http.dialects.errors import ErrorShape
from service.http.exchange import CONNECTION_KEY, ClientConnection, ClientDisconnected
from service.http.limits.totals import UNCOUNTED_BYTES
from service.http.responses import JSON

Headers = dict[bytes, bytes]  # by name in lower case; of a repeated one the last
VALID_ID = re.compile(rb"[!-~]{1,128}")
MAX_TIMEOUT_MS = 3_600_000
MAX_DIGITS = 20  # including leading zeros; Python refuses to parse more than 4,300


class TaskRequest:
    """One POST on a task's path, as ASGI."""

    __slots__ = ("_held", "_receive", "_send", "connection", "content_length", "headers", "id", "path", "received")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.path: str = scope["path"]
        self.headers: Headers = dict(scope["headers"])
        self.id = request_id(self.headers)
        stated = self.headers.get(b"content-length", b"")
        self.content_length = int(stated) if stated.isdigit() else 0  # bytes; 0 for a chunked body
        self.received = time.perf_counter()  # the head, then the last byte of the body
        self._held = 0  # bytes of the body that are counted
        # a server that does not report disconnects puts no connection into the scope
        self.connection: ClientConnection = scope.get("state", {}).get(CONNECTION_KEY) or ClientConnection()

    def timeout_seconds(self, default_ms: int) -> float:
        """The time in which the client wants its response. Raises Invalid."""
        stated = self.headers.get(b"x-request-timeout-ms")
        if stated is None:
            return default_ms / 1000
        if not stated.isdigit() or len(stated) > MAX_DIGITS or not 0 < int(stated) <= MAX_TIMEOUT_MS:
            shown = stated[:20].decode("latin-1")
            text = f"x-request-timeout-ms is {shown!r}: send whole milliseconds from 1 to {MAX_TIMEOUT_MS}"
            raise Invalid(text, code="timeout")
        return int(stated) / 1000

    async def read_body(self, limit: int) -> bytes:
        """Raises TooLarge over `limit` bytes, BuffersFull where the bodies of all requests hold too many (both before
        reading, if content-length says so), and ClientDisconnected."""
        parts, size, more = [], 0, self.content_length <= limit
        if more and self.content_length > UNCOUNTED_BYTES:
            self.connection.buffered.check_room(self.content_length)
        while more and size <= limit:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            if size > UNCOUNTED_BYTES:
                self.hold_body(size)
        if (size := max(size, self.content_length)) > limit:
            text = f"the body has {size} bytes or more; at most {limit} are accepted (BERT_MAX_BODY_BYTES)"
            raise TooLarge(text, code="body_too_large")
        self.received = time.perf_counter()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def hold_body(self, size: int) -> None:
        """Counts the body with `size` bytes until the request ends. Raises BuffersFull."""
        if size > max(self._held, UNCOUNTED_BYTES):
            self.connection.buffered.hold(size - self._held)
            self._held = size

    def release_body(self) -> None:
        """The request has ended: nothing of its body is held any more."""
        if self._held:
            self.connection.buffered.release(self._held)
            self._held = 0

    async def respond(self, status: int, content: bytes, media_type: str, *more: tuple[bytes, bytes]) -> None:
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", media_type.encode()),
            *more,
            (b"x-request-id", self.id),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})

    async def respond_error(self, error: ServiceError, shape: ErrorShape) -> None:
        content = shape.write(self.id.decode(), error.status, error.message, error.code, error.index)
        headers = ((name.encode(), value.encode()) for name, value in error.headers.items())
        await self.respond(error.status, content, JSON, *headers)


def request_id(headers: Headers) -> bytes:
    """The client's own x-request-id if it is safe in a log and in a header, otherwise a random one."""
    stated = headers.get(b"x-request-id", b"")
    return stated if VALID_ID.fullmatch(stated) else b"%016x" % random.getrandbits(64)  # names the request, no secret
