"""Cancels a request's work when its client disconnects."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any

CONNECTION_KEY = "client_connection"  # in a request's scope["state"]: where the protocol puts its ClientConnection


class ClientDisconnected(Exception):
    """The client closed the connection before its response was complete."""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One client connection, which carries one request at a time.

    The protocol calls `on_disconnect`, so that no second task per request has to wait for it. Does not know HTTP.
    """

    disconnected: bool = False
    _task: asyncio.Task[Any] | None = None

    def cancel_on_disconnect(self) -> "ClientConnection":
        """A context manager: cancels its block when the client disconnects, and then raises ClientDisconnected."""
        return self

    def __enter__(self) -> None:
        if self.disconnected:
            raise ClientDisconnected
        self._task = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self.disconnected and task is not None and isinstance(error, asyncio.CancelledError):
            task.uncancel()
            raise ClientDisconnected from None

    def on_disconnect(self) -> None:
        self.disconnected = True
        if self._task is not None:
            self._task.cancel()
