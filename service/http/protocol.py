"""Limits of a connection that uvicorn does not have: time for a request to arrive, size of its head (request line and
headers), time for which a response stays unread. Knows bytes and time, not what is requested."""

import asyncio
import fcntl
import secrets
import sys
import termios
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.connection.cycle import WholeResponseCycle
from service.http.connection.disconnect import CONNECTION_KEY, ClientConnection
from service.http.dialects.errors import SERVICE_ERROR
from service.http.limits.connections import ConnectionLimits

RESPONSE = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
SLICE_BYTES = 2**13  # parsed at a time: a rejection stops the rest, which the system may hand over in 250 KB
FREE_CHUNKS, LEAST_CHUNK_BYTES = 1000, 64  # of a body: each chunk takes as long as 64 bytes of another
REASON_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
UVICORN_MEMBERS = (  # undocumented ones that are used or overridden below
    *("_start_asgi_task", "_unset_keepalive_if_required", "send_400_response"),
    *("on_message_begin", "on_headers_complete", "on_body", "on_message_complete"),
    *("loop", "transport", "parser", "pipeline", "headers", "timeout_keep_alive_task", "scope", "cycle", "url"),
    *("disconnected", "keep_alive", "more_body", "response_started", "response_complete"),  # of a cycle
    *("access_log", "default_headers", "flow", "message_event", "on_response"),  # likewise, in `connection/cycle`
    *("body", "waiting_for_100_continue"),
)


def check_uvicorn() -> None:
    """Raises ImportError for a uvicorn without UVICORN_MEMBERS: a method of that name here would never be called."""
    setters = (HttpToolsProtocol.__init__, HttpToolsProtocol.on_message_begin, RequestResponseCycle.__init__)
    known = {*dir(HttpToolsProtocol), *(name for setter in setters for name in setter.__code__.co_names)}
    if missing := [name for name in UVICORN_MEMBERS if name not in known]:
        raise ImportError(f"uvicorn>=0.45,<0.55 is required; the installed one does not have {', '.join(missing)}")


check_uvicorn()


class LimitedHttpProtocol(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits]
    _in_head = False
    _in_trailers = False  # or before a chunk's first byte
    _only_head_received = False  # by this data_received, so far: no body, no end of a request
    _receiving = False  # a request has begun and is not complete
    _head_bytes = 0
    _chunks = 0  # of the body so far
    _body_bytes = 0  # those in chunks
    _rejected = False
    _read_timer: asyncio.TimerHandle | None = None
    _write_stall_timer: asyncio.TimerHandle | None = None  # while the system accepts no more of a response
    _current_cycle: RequestResponseCycle | None = None  # of the request being answered; `cycle`: of the newest one

    @classmethod
    def bind(cls, limits: ConnectionLimits) -> type["LimitedHttpProtocol"]:
        """The protocol class for uvicorn, which constructs its protocols itself."""
        return type("LimitedHttpProtocol", (cls,), {"limits": limits})

    def close_after_response(self) -> None:
        """To the newest request; without one the connection stays open until the server closes it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_connection = ClientConnection(self.limits.buffered)
        self._start_read_timer()

    def shutdown(self) -> None:
        """When the port has closed: a connection closes at once if no request of it has begun to arrive."""
        if self.transport.is_closing():
            return
        arrived = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        if not self._receiving and not any(arrived):
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        self._stop_write_stall_timer()
        super().connection_lost(exc)
        if self._current_cycle is not None:
            self._current_cycle.disconnected = True  # uvicorn marks the newest request only, and would write this one
        self.client_connection.on_disconnect()
        self.limits.on_connection_lost()

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        self._unset_keepalive_if_required()
        for start in range(0, len(data), SLICE_BYTES):
            self._only_head_received = self._in_head or self._in_trailers
            piece = memoryview(data)[start : start + SLICE_BYTES]
            self._parse(piece)
            if (self._in_head or self._in_trailers) and not self._rejected:
                self._head_bytes += len(piece) if self._only_head_received else 0
                self._check_head_size(self._head_bytes)
            if self._rejected:
                return
        if self._receiving and self._read_timer is None:
            self._start_read_timer()  # most requests arrive in one piece and need none

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_write_progress()

    def resume_writing(self) -> None:
        self._stop_write_stall_timer()
        super().resume_writing()

    def idle_since(self) -> float | None:
        """By the loop's clock; None while a request arrives or is answered."""
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        if self.headers is None and self._read_timer is not None and not self._receiving:
            return self._read_timer.when() - self.limits.client_timeout_seconds
        return None

    def abort_response(self) -> None:
        self.transport.abort()

    def _check_write_progress(self, unsent_before: int | None = None) -> None:
        """Aborts the connection if the client has read too little since the last check: its response is in memory.
        The system's buffer counts as well as the transport's: it holds megabytes for a slow reader."""
        timeout = self.limits.client_timeout_seconds
        in_system = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        unsent = self.transport.get_write_buffer_size() + int.from_bytes(in_system, sys.byteorder)
        if unsent_before is not None and unsent_before - unsent < timeout * self.limits.min_read_bytes_per_second:
            self.transport.abort()
            return
        self.limits.buffered.wait_for_reader(self, self.transport.get_write_buffer_size())
        self._write_stall_timer = self.loop.call_later(timeout, self._check_write_progress, unsent)

    def _stop_write_stall_timer(self) -> None:
        if self._write_stall_timer is not None:
            self._write_stall_timer.cancel()
            self._write_stall_timer = None
            self.limits.buffered.wait_for_reader(self, 0)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = WholeResponseCycle  # uvicorn has constructed it, and its classes differ in methods alone
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION_KEY] = self.client_connection
        self._in_head, self._only_head_received, self._receiving, self._head_bytes = True, False, True, 0
        self._chunks = self._body_bytes = 0
        self._stop_read_timer()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._check_head_size(len(self.url) + sum(len(name) + len(value) for name, value in self.headers))
        if self._rejected or self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.headers = []  # trailers, which follow, are not headers
        if self.limits.closing:
            self.close_after_response()

    def on_chunk_header(self) -> None:
        self._in_trailers = True
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + self._body_bytes // LEAST_CHUNK_BYTES and not self._rejected:
            sizes = f"the first {self._chunks - 1} chunks of the body hold {self._body_bytes} bytes"
            self._reject(400, "malformed", f"{sizes}: send chunks of at least {LEAST_CHUNK_BYTES} bytes")

    def on_body(self, body: bytes) -> None:
        self._in_trailers = self._only_head_received = False
        self._body_bytes += len(body)
        if not self._rejected:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_trailers = self._receiving = False
        self._stop_read_timer()
        if not self._rejected and not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._reject(400, "malformed", f"{msg.removesuffix('.')}: this is not HTTP/1.1")

    def _parse(self, rest: memoryview) -> None:
        """Parses the head of a request with `upgrade`, as Java's HttpClient sends by default, again without `upgrade`:
        the parser would take its body for the first bytes of the other protocol."""
        while rest and not self._rejected:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(self._head_without_upgrade() + rest[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")

    def _head_without_upgrade(self) -> bytes:
        """For a new parser; empty if the request is rejected."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._reject(400, "malformed", "CONNECT is not supported: this server is not a proxy")
            return b""
        kept = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, kept)

    def _start_read_timer(self) -> None:
        self._read_timer = self.loop.call_later(self.limits.client_timeout_seconds, self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        if self.pipeline or (self._in_head and self.cycle is not None and not self.cycle.response_complete):
            self._start_read_timer()  # reading is paused while an earlier request of this connection is answered
        elif self.headers is None or (self.cycle is not None and not self._in_head and self.cycle.response_started):
            self.transport.close()  # no request has begun, or it was answered before it was complete
        else:
            seconds = f"{self.limits.client_timeout_seconds:g} s (BERT_CLIENT_TIMEOUT_SECONDS)"
            self._reject(408, "slow", f"the request did not arrive within {seconds}")

    def _check_head_size(self, size: int) -> None:
        if size > self.limits.max_header_bytes:
            limit = f"{self.limits.max_header_bytes} bytes (BERT_MAX_HEADER_BYTES)"
            self._reject(431, "headers_too_large", f"the request line and headers have more than {limit}")

    def _reject(self, status: int, code: str, message: str) -> None:
        """Responds without the application, to which the request has not been passed, and closes."""
        self._rejected = True
        self._stop_read_timer()
        self.limits.on_rejected(status, code)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body):
            cycle.keep_alive = False  # an earlier request is being answered: its response is the connection's last
            return
        self.client_connection.rejected = cycle is not None and not cycle.response_complete
        body = SERVICE_ERROR.write(secrets.token_hex(8), status, message, code, None)
        self.transport.write(RESPONSE % (status, REASON_PHRASES[status], len(body), body))
        self.transport.close()
