"""Limits of a process: bytes held, connections accepted."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packbert.model_export.artifact.cpu import trim_heap

from ..address import BACKLOG
from ..errors import BuffersFull

BODIES = 8  # of the largest size, which a process holds
LEAST_BODY_BYTES = 2**20  # for that number: answers are bounded by the same bytes, and may be larger than bodies
UNCOUNTED_BYTES = 2**14  # of a body: a small request is never refused for the bytes of others, and costs no count
RETRY_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 1.0  # until the acceptor looks again, if no connection has ended
RESERVE = 64  # connections over the number: only their probes are answered
ACCEPTS_PER_TURN = 64  # of the event loop: about 5 ms
TRIM_SECONDS = 1.0  # after the last counted byte; while requests follow each other, freed memory is used again


def _trim() -> None:
    """Returns freed memory to the system, on a thread: it takes milliseconds, and only threads that allocate wait."""
    asyncio.get_running_loop().run_in_executor(None, trim_heap)


class BufferedBytes:
    """Bodies and answers are bounded by `most` bytes each."""

    def __init__(self, most: int = 2**62, on_idle: Callable[[], None] = _trim) -> None:
        self.most, self._on_idle = most, on_idle
        self.bodies = 0
        self.unsent: dict[asyncio.WriteTransport, int] = {}  # in the order in which they began to wait
        self._timer: asyncio.TimerHandle | None = None

    def check_size(self, size: int) -> None:
        """Raises BuffersFull if `size` more bytes of bodies would exceed the bound."""
        if self.bodies + size > self.most:
            held = f"this server holds {self.bodies} bytes of requests, and takes at most {self.most}"
            raise BuffersFull(f"{held} ({BODIES} x BERT_MAX_BODY_BYTES): retry later", retry_after=RETRY_SECONDS)

    def hold(self, size: int) -> None:
        """Counts bytes of a body. Raises BuffersFull, and then counts none of them."""
        self.check_size(size)
        self.bodies += size

    def release(self, size: int) -> None:
        self.bodies -= size
        self._trim_when_idle()

    def wait_for_reader(self, transport: asyncio.WriteTransport, size: int) -> None:
        """`size` bytes of an answer wait for their client; 0: none any more. Over the bound, the connections that have
        waited for the longest are aborted."""
        if size:
            self.unsent[transport] = size
        elif self.unsent.pop(transport, 0):
            self._trim_when_idle()
        while len(self.unsent) > 1 and sum(self.unsent.values()) > self.most:
            slowest = next(iter(self.unsent))
            del self.unsent[slowest]
            slowest.abort()

    def _trim_when_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        idle = not self.bodies and not self.unsent
        self._timer = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._on_idle) if idle else None


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """What all connections of a process share: limits, and the open connections with their tasks."""

    client_timeout_seconds: float = 20.0
    keep_alive_seconds: float = 75.0  # longer than the 60 of common load balancers, which must be the first to close
    max_header_bytes: int = 2**14  # of a request's first line and headers
    min_read_bytes_per_second: int = 10_000  # of a response; a client that reads more slowly is disconnected
    buffered: BufferedBytes = field(default_factory=BufferedBytes)
    on_connection_lost: Callable[[], None] = lambda: None
    on_rejected: Callable[[int, str], None] = lambda status, code: None
    log_access: Callable[..., None] | None = None  # gets the fields of a line for each response; None: no access log
    closing: bool = False  # each connection closes after its next response
    most: int = 2**31  # connections
    is_over: Callable[[], bool] = lambda: False  # more of them are open
    probes: frozenset[str] = frozenset()  # the paths that are answered also then
    connections: set[Any] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # of requests
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
        give_place: Callable[[bool], bool],
    ) -> None:
        """`make_protocol` gets whether the connection is in the reserve. `give_place` closes a connection that may give
        way, and returns whether there was such a connection; it gets whether the reserve is full too. Raises OSError if
        a socket cannot listen."""
        self.sockets = list(listeners)
        self.most, self.reserve = most, reserve
        self.open = 0  # connections
        self._make_protocol, self._give_place = make_protocol, give_place
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None
        for listener in self.sockets:
            listener.listen(BACKLOG)
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
        """Accepts the connections that wait, up to the number and the reserve."""
        for _ in range(ACCEPTS_PER_TURN):
            if self.open >= self.most + self.reserve and not self._give_place(True):
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
            protocol = self._make_protocol(self.open >= self.most and not self._give_place(False))
            self.open += 1  # until `connection_lost` of the protocol
            task = self._loop.create_task(self._open(connection, protocol))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:  # the client has gone
            protocol.connection_lost(error)

    def _pause(self) -> None:
        self._stop_watching()
        self._timer = self._loop.call_later(LOOK_AGAIN_SECONDS, self.watch)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watching:
            self._watching = False
            for listener in self.sockets:
                self._loop.remove_reader(listener.fileno())
