"""One request as plain ASGI: what a task's route reads of it, and the two ways to answer it. Costs what it does, and no layer in between."""

import hmac
import random
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from service.errors import Invalid, ServiceError, TooLarge, Unauthorized
from service.http.disconnect import PRESENCE, ClientConnection, ClientDisconnected
from service.http.responses import JSON, error_bytes

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]
ID_LENGTH = 128
MAX_TIMEOUT_MS = 3_600_000
MAX_DIGITS = 20  # leading zeros and all: of more than 4,300 Python makes no number


@dataclass(slots=True, eq=False)
class TaskRequest:
    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]  # by lower-case name
    id: bytes  # the caller's own x-request-id where it is sane

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send) -> "TaskRequest":
        headers = dict(scope["headers"])
        return cls(scope, receive, send, headers, _request_id(headers.get(b"x-request-id", b"")))

    @property
    def presence(self) -> ClientConnection:
        """Of the caller; where the server does not tell, one who never leaves."""
        found: ClientConnection = self.scope.get("state", {}).get(PRESENCE) or ClientConnection()
        return found

    @property
    def stated_length(self) -> int:
        """Bytes of the body; 0 where it comes in chunks."""
        stated = self.headers.get(b"content-length", b"")
        return int(stated) if stated.isdigit() else 0

    def authenticate(self, key: str) -> None:
        if key and not hmac.compare_digest(self.headers.get(b"authorization", b""), f"Bearer {key}".encode()):
            raise Unauthorized("this server wants `Authorization: Bearer KEY`, and the key is missing or wrong")

    def timeout_seconds(self, default_ms: int) -> float:
        """Until the request is worthless."""
        stated = self.headers.get(b"x-request-timeout-ms")
        if stated is None:
            return default_ms / 1000
        if not stated.isdigit() or len(stated) > MAX_DIGITS or not 0 < int(stated) <= MAX_TIMEOUT_MS:
            shown = stated[:20].decode("latin-1")
            raise Invalid(
                f"x-request-timeout-ms is {shown!r}: send whole milliseconds from 1 to {MAX_TIMEOUT_MS}", code="timeout"
            )
        return int(stated) / 1000

    async def body(self, limit: int) -> bytes:
        """Raises TooLarge over `limit` bytes, before one is read where the length is stated; Left where the caller is gone before the end."""
        if self.stated_length > limit:
            raise _too_large(self.stated_length, limit)
        parts, size, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(size, limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def answer(self, status: int, content: bytes, media_type: str, *more: Header) -> None:
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", media_type.encode()),
            *more,
            (b"x-request-id", self.id),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})

    async def refuse(self, error: ServiceError) -> None:
        content = error_bytes(
            self.scope["path"], self.id.decode(), error.status, error.message, error.code, error.index
        )
        await self.answer(
            error.status, content, JSON, *((name.encode(), value.encode()) for name, value in error.headers.items())
        )


def _request_id(stated: bytes) -> bytes:
    sane = 0 < len(stated) <= ID_LENGTH and all(33 <= byte <= 126 for byte in stated)
    return stated if sane else b"%016x" % random.getrandbits(64)  # a name for the log, no secret


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"the body has {size} bytes or more; at most {limit} are taken (BERT_MAX_BODY_BYTES)", code="body_too_large"
    )
