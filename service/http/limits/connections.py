"""The limits of connections. Accepts up to a number; further ones wait in the kernel's backlog. Knows no HTTP."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.http.limits.totals import BufferedBytes

RETRY_SECONDS = 1.0  # after which it looks again, where no connection has ended


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """Shared by all connections."""

    client_timeout_seconds: float
    max_header_bytes: int
    min_read_bytes_per_second: int = 1
    buffered: BufferedBytes = field(default_factory=BufferedBytes)
    on_connection_lost: Callable[[], None] = lambda: None
    on_rejected: Callable[[int, str], None] = lambda status, code: None
    closing: bool = False  # each connection closes after its next response


class Acceptor:
    """Stands in for an asyncio server, which accepts whatever arrives. At the number it stops watching its sockets
    (no turn of the loop is spent on them) until a connection ends."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        most: int,
        make_room: Callable[[], None],
    ) -> None:
        """`make_room` closes a connection that is idle, if there is one."""
        self.sockets = list(listeners)
        self.most = most
        self.open = 0  # connections
        self._make_protocol, self._make_room = make_protocol, make_room
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None
        for listener in self.sockets:
            listener.setblocking(False)
        self.watch()

    def on_connection_lost(self) -> None:
        self.open -= 1
        self.watch()

    def watch(self) -> None:
        """Accepts what waits and what arrives."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._watching:
            self._watching = True
            for listener in self.sockets:
                self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        self._stop_watching()
        for listener in self.sockets:
            listener.close()
        self.sockets = []

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self, listener: socket.socket) -> None:
        """All that wait, up to the number."""
        if self.open >= self.most:  # and one more waits
            self._pause()
            self._make_room()
            return
        while self.open < self.most:
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free, or no memory
                self._pause()
                return
            connection.setblocking(False)
            self.open += 1
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # the client has gone
            self.on_connection_lost()

    def _pause(self) -> None:
        self._stop_watching()
        self._timer = self._loop.call_later(RETRY_SECONDS, self.watch)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watching:
            self._watching = False
            for listener in self.sockets:
                self._loop.remove_reader(listener.fileno())
