"""The limits of connections. Accepts up to a number, and a reserve; further ones wait in the kernel's backlog."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from service.http.limits.totals import BufferedBytes

RETRY_SECONDS = 1.0  # after which it looks again, where no connection has ended
RESERVE = 64  # connections over the number, of which only probes are answered
ACCEPTS_PER_TURN = 64  # of the event loop: about 5 ms


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """Shared by all connections."""

    client_timeout_seconds: float
    max_header_bytes: int
    min_read_bytes_per_second: int = 1
    buffered: BufferedBytes = field(default_factory=BufferedBytes)
    on_connection_lost: Callable[[], None] = lambda: None
    on_rejected: Callable[[int, str], None] = lambda status, code: None
    log_access: Callable[..., None] | None = None  # gets the fields of a line for each response; None: no access log
    keep_alive_seconds: float = 75.0
    closing: bool = False  # each connection closes after its next response
    most: int = 2**31  # connections
    is_over: Callable[[], bool] = lambda: False  # more of them are open
    probes: frozenset[str] = frozenset()  # the paths that are answered also then
    # connections whose request is not complete, the oldest first: its head, or only its body
    heads: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    bodies: OrderedDict[Any, None] = field(default_factory=OrderedDict)


class Acceptor:
    """Stands in for an asyncio server, which accepts whatever arrives. At the number it stops watching its sockets
    (no turn of the loop is spent on them) until a connection ends."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make_protocol: Callable[[bool], asyncio.Protocol],
        *,
        most: int,
        reserve: int,
        make_room: Callable[[bool], bool],
    ) -> None:
        """`make_protocol` gets whether the connection is in the reserve. `make_room` closes a connection that may give
        way, if there is one; it gets whether the reserve is full too."""
        self.sockets = list(listeners)
        self.most, self.reserve = most, reserve
        self.open = 0  # connections
        self._make_protocol, self._make_room = make_protocol, make_room
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None
        for listener in self.sockets:
            listener.setblocking(False)
        self.watch()

    @property
    def is_over(self) -> bool:
        return self.open > self.most

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
        """Those that wait, up to the number and the reserve."""
        for _ in range(ACCEPTS_PER_TURN):
            if self.open >= self.most + self.reserve and not self._make_room(True):
                self._pause()
                return
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free, or no memory
                self._pause()
                return
            connection.setblocking(False)
            self.open += 1
            in_reserve = self.is_over and not self._make_room(False)
            task = self._loop.create_task(self._open(connection, in_reserve))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, in_reserve: bool) -> None:
        try:
            await self._loop.connect_accepted_socket(partial(self._make_protocol, in_reserve), connection)
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
