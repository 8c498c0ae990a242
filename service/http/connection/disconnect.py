"""Cancels a request's work when its client disconnects."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from service.errors import ServiceError
from service.http.limits.totals import BufferedBytes

CONNECTION_KEY = "client_connection"  # in a request's scope["state"]: where the protocol puts its ClientConnection


class ClientDisconnected(ServiceError):
    """The connection closed before the response was complete. The response to it is only counted: it cannot be sent."""

    status, code = 499, "client_closed"

    def __init__(self) -> None:
        super().__init__("the client closed the connection")


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One client connection, with one request at a time. Does not know HTTP.

    The protocol calls `on_disconnect`, so that no second task per request has to wait for a disconnect. `buffered` is
    shared by all connections of a process.
    """

    buffered: BufferedBytes = field(default_factory=BufferedBytes)
    disconnected: bool = False
    rejected: bool = False  # by the protocol, which counts it: a request whose body the endpoint still reads
    _task: asyncio.Task[Any] | None = None

    def cancel_on_disconnect(self) -> "ClientConnection":
        """A context manager: cancels its block when the client disconnects, and then raises ClientDisconnected."""
        return self

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
