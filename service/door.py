"""What stands before every route, as plain ASGI: the request's id, the limit on its body, and word of a caller who left."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from service.errors import TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")
ID_LENGTH = 128


class Left(Exception):
    """The caller closed the connection before the answer was there."""


class Door:
    """Gives each request an id (the caller's own x-request-id where it is sane) and cuts off bodies over the limit, chunked ones too."""

    def __init__(self, app: App, *, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope["state"] = {**scope.get("state", {}), "request_id": request_id.decode()}
        stated = headers.get(b"content-length", b"0")
        received, whole = 0, False

        async def limited_receive() -> Message:
            nonlocal received, whole
            if stated.isdigit() and int(stated) > self._limit:
                raise self._too_large(int(stated))
            message = await receive()
            if message["type"] == "http.disconnect" and not whole:
                raise Left
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._too_large(received)
            return message

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, limited_receive, named_send)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(f"the body has {size} bytes or more; at most {self._limit} are taken (BERT_MAX_BODY_BYTES)", code="body_too_large")


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises Left as soon as the caller is gone. To be called when the body has been read."""
    attention = _Attention(asyncio.current_task())
    watcher = asyncio.ensure_future(attention.watch(receive))
    try:
        return await work
    except asyncio.CancelledError:
        if attention.left and attention.task is not None:
            attention.task.uncancel()
            raise Left from None
        raise
    finally:
        attention.over = True
        watcher.cancel()


@dataclass(slots=True)
class _Attention:
    """Work is done on the request's own task: one task a request watches, none waits for the two."""

    task: asyncio.Task[Any] | None
    left: bool = False
    over: bool = False

    async def watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self.task is not None and not self.over:
            self.left = True
            self.task.cancel()


def _request_id(stated: bytes) -> bytes:
    sane = 0 < len(stated) <= ID_LENGTH and all(33 <= byte <= 126 for byte in stated)
    return stated if sane else secrets.token_hex(8).encode()
