"""A connection of a client: HTTP/1.1 parsed by httptools, the application called as ASGI, responses written; all
under limits of bytes and time.

A connection goes from WAITING to HEAD, BODY and ANSWERING, and back; CLOSING can follow each of them. Requests that a
client sends before it has its responses are parsed only up to the end of SLICE_BYTES, and answered in turn.
"""

import asyncio
import contextvars
import enum
import fcntl
import logging
import sys
import termios
from collections import OrderedDict, deque
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp

from ..errors import UNEXPECTED
from .exchange import CONNECTION_KEY, ClientConnection, Exchange, Rejected, split_url, write_error
from .limits import ConnectionLimits

SLICE_BYTES = 2**13  # parsed at a time: a rejection stops the rest, which the system may hand over in 250 KB
UNREAD_BYTES = 2**16  # of a body: the system keeps further bytes until the application reads these
FREE_CHUNKS, LEAST_CHUNK_BYTES = 1000, 64  # of a body: each chunk takes as long as 64 bytes of another
NOTED = frozenset({b"expect", b"host", b"transfer-encoding"})  # headers that the connection itself reads
TIMER_SECONDS = 0.002  # by which a timer may be early: uvloop's have milliseconds
log = logging.getLogger("service")


class State(enum.Enum):
    WAITING = enum.auto()  # no request has begun
    HEAD = enum.auto()  # of a request arrives
    BODY = enum.auto()  # arrives; the application may run, and may have answered
    ANSWERING = enum.auto()  # the request is complete and has no response yet
    CLOSING = enum.auto()  # nothing more is read


class Connection(asyncio.Protocol):
    unwritable: asyncio.Event | None = None  # as in Carrier
    since = 0.0  # by the loop's clock: the first byte of the request that arrives, or the last response
    _state = State.WAITING
    # the list of `limits` that holds this connection while its first request, or the rest of a request, is to come
    _listed: OrderedDict[Any, None] | None = None
    _timer: asyncio.TimerHandle | None = None  # no earlier than needed; it looks at `since`
    _write_timer: asyncio.TimerHandle | None = None
    _paused = False  # reading
    _unparsed = b""  # received behind a complete request that is not answered yet
    _receiving: Exchange | None = None  # whose body arrives
    _rejected: Rejected | None = None  # raised by a callback of the parser; answered after the requests before it
    _is_open = True  # it counts as a connection
    _url = b""
    _went_on = False  # the slice being parsed has begun or ended a head or a request, or holds bytes of a body
    _silent_bytes = 0  # of the slices since `_went_on` was true: of a head, of trailers, of a chunk's size
    _chunks = 0  # of the body so far
    _body_bytes = 0  # those in chunks

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, in_reserve: bool = False) -> None:
        """`in_reserve`: accepted beyond the number, so that only probes are answered."""
        self.app, self.limits, self.in_reserve = app, limits, in_reserve
        self.client_connection = ClientConnection(limits.buffered)
        self._loop = asyncio.get_running_loop()
        self._new_parser()
        self._exchanges: deque[Exchange] = deque()  # that are not answered; the first of them runs
        self._headers: list[tuple[bytes, bytes]] = []

    # what the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.limits.connections.add(self)
        # without an address: the client has reset the connection before it was accepted
        known = (transport.get_extra_info(name) or ("", 0) for name in ("sockname", "peername"))
        self._server, self._client = (address[:2] for address in known)
        transport.set_write_buffer_limits(0)  # whatever a client does not read is watched
        self.since = self._loop.time()
        self._list_in(self.limits.heads)
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._state is State.CLOSING:
            return
        self._unparsed += data
        try:
            self._parse()
            self._watch_arrival()
        except Rejected as rejected:
            self._reject(rejected)
        except Exception:  # whatever it is: a connection that is not watched closes
            log.exception("a request could not be read")
            self._reject(self._refuse(500, UNEXPECTED))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._state = State.CLOSING
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        for exchange in self._exchanges:
            exchange.disconnect()
        self.client_connection.on_disconnect()
        self._leave()
        self._exchanges.clear()  # these refer to the connection, and a cycle waits for the garbage collector
        self._receiving = self._rejected = self._timer = None
        del self._parser

    def pause_writing(self) -> None:
        self.unwritable = asyncio.Event()
        self._check_write_progress()

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            self.limits.buffered.wait_for_reader(self.transport, 0)
        if self.unwritable is not None:
            self.unwritable.set()
            self.unwritable = None

    # what the server calls

    def close_after_response(self) -> None:
        """Closes after the response to the newest request; without a request, when the server closes it."""
        if self._exchanges:
            self._exchanges[-1].keep_alive = False

    def shutdown(self) -> None:
        """Closes, when the port has closed: at once if no request has begun to arrive, else after its response."""
        if self.transport.is_closing():
            return
        arrived = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        if self._state is State.WAITING and not any(arrived):
            self.close()
        self.close_after_response()

    @property
    def is_idle(self) -> bool:
        """Whether no request arrives or is answered."""
        return self._state is State.WAITING

    def give_way(self) -> None:
        """Closes for another connection, at once: the system's buffer is not waited for."""
        if self._state is not State.WAITING:
            self._reject(self._refuse_full())
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        self.close()
        self._leave()

    # what an exchange calls

    def close(self) -> None:
        self._state = State.CLOSING
        self.transport.close()

    def resume_reading(self) -> None:
        if self._paused and not self._unparsed and self._state is not State.CLOSING:
            self._paused = False
            self.transport.resume_reading()

    def on_response_complete(self, exchange: Exchange) -> None:
        self._exchanges.popleft()
        if not exchange.keep_alive:
            self.close()
            return
        self.since = self._loop.time()
        if self._exchanges:
            self._run(self._exchanges[0])
        elif self._rejected is not None:
            self._respond_rejected(self._rejected)
            return
        elif self._state is State.ANSWERING:
            self._state = State.WAITING
        if self._timer is None:
            self._arm()
        if (self._paused or self._state is not State.WAITING) and not self._is_behind:
            self.data_received(b"")  # what was received before
            self.resume_reading()

    def log_access(self, request_id: str, method: str, route: str, status: int, size: int, **more: Any) -> None:
        if self.limits.log_access is not None:
            client = ":".join(map(str, self._client))
            fields = {"client": client, "method": method, "route": route, "status": status, "bytes": size}
            self.limits.log_access(id=request_id, **fields, **more)

    # parsing

    def _new_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is ignored

    def _parse(self) -> None:
        """Parses what was received, up to a complete request that waits for its response. Raises Rejected."""
        data, self._unparsed = memoryview(self._unparsed), b""
        for start in range(0, len(data), SLICE_BYTES):
            if self._is_behind:
                self._unparsed = bytes(data[start:])
                self._pause_reading()
                return
            piece = data[start : start + SLICE_BYTES]
            self._went_on = False
            self._parse_piece(piece)
            if self._went_on:
                self._silent_bytes = 0
            else:
                self._silent_bytes += len(piece)
                self._check_head_size(self._silent_bytes)

    @property
    def _is_behind(self) -> bool:
        """Whether a complete request waits for its response."""
        return bool(self._exchanges) and self._exchanges[0] is not self._receiving

    def _parse_piece(self, piece: memoryview) -> None:
        """Parses the head of a request with `upgrade`, as Java's HttpClient sends by default, again without `upgrade`:
        the parser would take its body for the first bytes of the other protocol."""
        while piece:
            try:
                self._parser.feed_data(piece)
                return
            except httptools.HttpParserUpgrade as upgrade:
                piece = memoryview(self._head_without_upgrade() + piece[upgrade.args[0] :])
            except httptools.HttpParserCallbackError as error:
                raise self._rejected or error  # noqa: B904 - of a method below
            except httptools.HttpParserError as error:
                if self._parser.get_method() == b"PRI":
                    raise self._refuse(505, "HTTP/2 without TLS (h2c) is not supported: send HTTP/1.1") from None
                raise self._refuse(400, f"the request is not valid HTTP/1.1: {error}") from None

    def _refuse(self, status: int, message: str) -> Rejected:
        """The error to be raised. It is kept: the parser's error has a callback's exception as its `__context__` alone,
        which Python replaces if another exception is being handled."""
        self._rejected = Rejected(status, message)
        return self._rejected

    def _head_without_upgrade(self) -> bytes:
        """The head of the request without `upgrade`, for a new parser."""
        kept = b"".join(b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade")
        start = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        self._new_parser()
        return b"%b%b\r\n" % (start, kept)

    def on_message_begin(self) -> None:
        self._state, self._went_on = State.HEAD, True
        self._list_in(None)  # in `_watch_arrival`, if it does not arrive at once
        self._url, self._headers = b"", []
        self._chunks = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._went_on = True
        self._check_head_size(len(self._url) + sum([len(name) + len(value) for name, value in self._headers]))
        parser, noted = self._parser, [(name, value.lower()) for name, value in self._headers if name in NOTED]
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        if method == "CONNECT":
            raise self._refuse(400, "CONNECT is not supported: this server is not a proxy")
        if version not in ("1.1", "1.0"):
            raise self._refuse(505, f"HTTP/{version} is not supported: send HTTP/1.1")
        hosts = [name for name, _ in noted].count(b"host")
        if hosts > 1 or (version == "1.1" and not hosts):
            raise self._refuse(400, f"the request has {hosts} Host headers: send one")
        codings = [value for name, value in noted if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            stated = b", ".join(codings).decode("latin-1")
            raise self._refuse(501, f"transfer-encoding is {stated[:50]!r}: only chunked is supported")
        if parser.should_upgrade():
            return
        self._state = State.BODY
        scope = self._make_scope(method, version)
        self.in_reserve = self.in_reserve and self.limits.open > self.limits.most
        if self.in_reserve and scope["path"] not in self.limits.probes:
            raise self._refuse_full()
        exchange = Exchange(
            self,
            scope,
            keep_alive=version == "1.1" and parser.should_keep_alive() and not (self.limits.closing or self.in_reserve),
            continues=version == "1.1" and (b"expect", b"100-continue") in noted,
        )
        self._headers = []  # trailers, which follow, are not headers
        self._receiving = exchange
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._run(exchange)

    def _make_scope(self, method: str, version: str) -> dict[str, Any]:
        raw_path, query = split_url(self._url)
        if not raw_path:
            raise self._refuse(400, "the request's URL has no path: this is not HTTP/1.1")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "method": method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": {CONNECTION_KEY: self.client_connection},
        }

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + self._body_bytes // LEAST_CHUNK_BYTES:
            sizes = f"the first {self._chunks - 1} chunks of the body hold {self._body_bytes} bytes"
            raise self._refuse(400, f"{sizes}: send chunks of at least {LEAST_CHUNK_BYTES} bytes")

    def on_body(self, body: bytes) -> None:
        self._went_on = True
        self._body_bytes += len(body)
        exchange = self._receiving
        assert exchange is not None
        if not exchange.complete and exchange.add(body) > UNREAD_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._went_on = True
        exchange, self._receiving = self._receiving, None
        if exchange is not None:  # otherwise the request is parsed again, without `upgrade`
            exchange.whole = True
            exchange.wake()
        if self._paused:  # all of the body is here; an end of the connection has to be seen
            self.resume_reading()
        self._state = State.ANSWERING if self._exchanges else State.WAITING

    def _check_head_size(self, size: int) -> None:
        if size > self.limits.max_header_bytes:
            limit = self.limits.max_header_bytes
            raise self._refuse(431, f"the request line and headers have more than {limit} bytes: shorten them")

    # acting

    def _run(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self.app), context=contextvars.Context())  # of no other request
        self.limits.tasks.add(task)
        task.add_done_callback(self.limits.tasks.discard)

    def _refuse_full(self) -> Rejected:
        return self._refuse(503, f"this server takes {self.limits.most} connections: retry later")

    def _reject(self, rejected: Rejected) -> None:
        """Closes; before, it responds without the application, after the responses to earlier requests."""
        receiving, self._receiving, self._state = self._receiving, None, State.CLOSING
        self._list_in(None)
        if receiving is not None and receiving.started:  # before its body was complete: there is nothing left to say
            receiving.keep_alive = False
            if receiving.complete:
                self.close()
            return
        if receiving is not None:
            self._exchanges.pop()
            self.client_connection.rejected = not self._exchanges  # else it does not run yet
            receiving.disconnect()
        if not self._exchanges:
            self._respond_rejected(rejected)
        self.limits.on_rejected(rejected.status, rejected.code)

    def _respond_rejected(self, rejected: Rejected) -> None:
        number, content, size = write_error(rejected)
        self.transport.write(content)
        method = self._parser.get_method().decode("ascii") if self._url else ""
        path, _, _ = self._url.partition(b"?")  # a query may hold a secret
        self.log_access(number, method, path.decode("latin-1"), rejected.status, size, code=rejected.code)
        self.close()

    def _pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    # time

    def _watch_arrival(self) -> None:
        """Called after each piece: most requests arrive in a single piece, and need neither timer nor list."""
        if self._state is State.ANSWERING or self._is_behind:
            self._list_in(None)
        elif self._state is not State.WAITING:
            is_new = self._listed is None
            self._list_in(self.limits.heads if self._state is State.HEAD else self.limits.bodies)
            if is_new:
                self.since = self._loop.time()
                self._arm()

    def _list_in(self, listed: OrderedDict[Any, None] | None) -> None:
        if listed is not self._listed:
            if self._listed is not None:
                del self._listed[self]
            if listed is not None:
                listed[self] = None
            self._listed = listed

    def _leave(self) -> None:
        """The connection does not count as open any more."""
        self._list_in(None)
        if self._is_open:
            self._is_open = False
            self.limits.connections.discard(self)
            self.limits.open -= 1
            self.limits.on_connection_lost()

    @property
    def _due(self) -> float:
        limits, is_idle = self.limits, self._listed is None
        return self.since + (limits.keep_alive_seconds if is_idle else limits.client_timeout_seconds)

    def _arm(self) -> None:
        """Sets the timer for `_due`. A timer that runs out earlier is kept, because it looks again."""
        if self._timer is None or self._due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._state is State.ANSWERING or self._state is State.CLOSING or self._is_behind:
            return  # the next response arms it
        if self._loop.time() < self._due - TIMER_SECONDS:
            self._arm()
        elif self._state is State.WAITING:
            self.close()
        else:
            seconds = f"{self.limits.client_timeout_seconds:g} s"
            self._reject(self._refuse(408, f"the request did not arrive within {seconds}"))

    def _check_write_progress(self, unsent_before: int | None = None) -> None:
        """Aborts the connection if the client has read too little since the last check: its response is in memory.
        The system's buffer counts as well as the transport's: it holds megabytes for a slow reader."""
        timeout = self.limits.client_timeout_seconds
        in_system = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        unsent = self.transport.get_write_buffer_size() + int.from_bytes(in_system, sys.byteorder)
        if unsent_before is not None and unsent_before - unsent < timeout * self.limits.min_read_bytes_per_second:
            self.transport.abort()
            return
        self.limits.buffered.wait_for_reader(self.transport, self.transport.get_write_buffer_size())
        self._write_timer = self._loop.call_later(timeout, self._check_write_progress, unsent)
