"""Limits of a process: bytes held, connections accepted."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Any

from packbert.model_export.artifact.cpu import trim_heap

from ..address import BACKLOG
from ..errors import BuffersFull

BODIES = 8  # of the largest size, which a process holds
LEAST_BODY_BYTES = 2**20  # for that number: answers are bounded by the same bytes, and may be larger than bodies
UNCOUNTED_BYTES = 2**14  # of a body: a small request is never refused for the bytes of others, and costs no count
RETRY_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 1.0  # until the acceptor looks again, if no connection has ended
MIN_IDLE_SECONDS = 1.0  # before a connection may be closed for another
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
    on_connection_lost: Callable[[], None] = lambda: None  # after it has left `open`
    on_rejected: Callable[[int, str], None] = lambda status, code: None
    log_access: Callable[..., None] | None = None  # gets the fields of a line for each response; None: no access log
    closing: bool = False  # each connection closes after its next response
    most: int = 1024  # connections
    reserve: int = 64  # connections over that number, of which only probes are answered
    open: int = 0  # connections that were accepted and have not ended
    probes: frozenset[str] = frozenset()  # the paths of probes
    connections: set[Any] = field(default_factory=set)  # that have a transport
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # of requests, and of connections that open
    # connections whose request is not complete, the oldest first: its head, or only its body
    heads: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    bodies: OrderedDict[Any, None] = field(default_factory=OrderedDict)


class Acceptor:
    """Stands in for an asyncio server, which accepts whatever arrives. At the number it stops watching its sockets
    (no turn of the loop is spent on them) until a connection ends."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: ConnectionLimits,
        make_protocol: Callable[[bool], asyncio.Protocol],
    ) -> None:
        """`make_protocol` gets whether the connection is in the reserve. Raises OSError if a socket cannot listen."""
        self._sockets, self._limits, self._make_protocol = listeners, limits, make_protocol
        limits.on_connection_lost = self.watch
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None
        for listener in listeners:
            listener.listen(BACKLOG)
            listener.setblocking(False)
        self.watch()

    def watch(self) -> None:
        """Accepts what waits and what arrives."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._watching:
            self._watching = True
            for listener in self._sockets:
                self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        self._stop_watching()
        for listener in self._sockets:
            listener.close()
        self._sockets = ()

    def _accept(self, listener: socket.socket) -> None:
        """Accepts the connections that wait, up to the number and the reserve."""
        limits = self._limits
        for _ in range(ACCEPTS_PER_TURN):
            if limits.open >= limits.most + limits.reserve and not self._give_place(reserve_is_full=True):
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
            in_reserve = limits.open >= limits.most and not self._give_place(reserve_is_full=False)
            protocol = self._make_protocol(in_reserve)
            limits.open += 1
            task = self._loop.create_task(self._open(connection, protocol))
            limits.tasks.add(task)
            task.add_done_callback(limits.tasks.discard)

    def _give_place(self, *, reserve_is_full: bool) -> bool:
        """Closes a connection that has been there for MIN_IDLE_SECONDS; False if there is none.

        If `reserve_is_full`, a connection without a whole head does not stay so long.
        """
        before, heads = self._loop.time() - MIN_IDLE_SECONDS, self._limits.heads
        for oldest in self._oldest():
            if oldest.since < before:
                oldest.give_way()
                return True
        if reserve_is_full and heads:
            next(iter(heads)).give_way()
            return True
        return False

    def _oldest(self) -> Iterator[Any]:
        """The oldest connection without a whole head, the longest idle, the oldest without a whole body."""
        yield from islice(self._limits.heads, 1)
        idle = (each for each in self._limits.connections if each.is_idle)
        yield from nsmallest(1, idle, key=lambda each: each.since)
        yield from islice(self._limits.bodies, 1)

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
        self._watching = False
        for listener in self._sockets:
            self._loop.remove_reader(listener.fileno())
