"""The connection's side of the door: how long a request may take to arrive and how large its head may be, told in the one error shape;
and how long an answer is kept for a caller who takes nothing of it.

uvicorn limits neither. Knows bytes and time; what a request says is not known here.
"""

import asyncio
import fcntl
import json
import secrets
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.disconnect import PRESENCE, ClientConnection

PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """What all connections share."""

    client_timeout_seconds: float
    max_header_bytes: int
    refused: Callable[[int, str], None] = lambda status, code: None  # told of every refusal made here
    draining: bool = False  # every connection closes after its next answer


class LimitedHttpProtocol(HttpToolsProtocol):
    gate: ClassVar[ConnectionLimits]
    _due: asyncio.TimerHandle | None = None
    _in_head = False
    _in_trailers = False  # or before a chunk's first byte
    _continued = False  # what has been received since is head or trailers and nothing else
    _arriving = False  # a request has begun and is not whole
    _head_bytes = 0
    _refused = False
    _stalled: asyncio.TimerHandle | None = None  # while the system takes no more of an answer
    _answered: RequestResponseCycle | None = None  # the request whose turn it is

    @classmethod
    def bind(cls, gate: ConnectionLimits) -> type["LimitedHttpProtocol"]:
        """The protocol class for uvicorn, which constructs its protocols itself."""
        return type("LimitedHttpProtocol", (cls,), {"gate": gate})

    def close_after_answer(self) -> None:
        """Of the newest request; a connection without one stays open until the server closes it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.presence = ClientConnection()
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_watching()
        super().connection_lost(exc)
        if self._answered is not None:
            self._answered.disconnected = (
                True  # uvicorn tells the newest request alone, and would write the answer to an earlier one
            )
        self.presence.leave()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._continued = self._in_head or self._in_trailers
        self._unset_keepalive_if_required()
        self._parse(data)
        if (self._in_head or self._in_trailers) and not self._refused:
            self._head_bytes += len(data) if self._continued else 0
            self._check_head(self._head_bytes)
        if self._arriving and self._due is None and not self._refused:
            self._start_clock()  # most requests come whole, and need none

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self._unread())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch(self, unread: int) -> None:
        """A caller who takes nothing of its answer would keep it in memory for as long as it likes."""
        self._stalled = self.loop.call_later(self.gate.client_timeout_seconds, self._look, unread)

    def _look(self, unread: int) -> None:
        still = self._unread()
        if still != unread:
            self._watch(still)
        else:
            self.transport.abort()

    def _unread(self) -> int:
        """Bytes of answers that the caller has not taken: here, and in the system, which holds megabytes of a slow reader's."""
        sent = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(sent, sys.byteorder)

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][PRESENCE] = self.presence
        self._in_head, self._continued, self._arriving, self._head_bytes = True, False, True, 0
        self._stop_clock()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._check_head(len(self.url) + sum(len(name) + len(value) for name, value in self.headers))
        if self._refused or self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.headers = []  # trailers are no part of the head
        if self.gate.draining:
            self.close_after_answer()

    def on_chunk_header(self) -> None:
        self._in_trailers = True

    def on_body(self, body: bytes) -> None:
        self._in_trailers = self._continued = False
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_trailers = self._arriving = False
        self._stop_clock()
        if not self._refused and not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed", f"{msg.removesuffix('.')}: this is not HTTP/1.1")

    def _parse(self, data: bytes) -> None:
        """A request that asks for another protocol, as Java's HttpClient does by default, is read again without its asking: the parser takes its
        body for what that protocol says first."""
        rest = memoryview(data)
        while rest and not self._refused:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                self._read_head_again()
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")

    def _read_head_again(self) -> None:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(400, "malformed", "CONNECT: this is no proxy")
            return
        kept = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, kept))

    def _start_clock(self) -> None:
        self._stop_clock()
        self._due = self.loop.call_later(self.gate.client_timeout_seconds, self._too_slow)

    def _stop_clock(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _too_slow(self) -> None:
        if self.pipeline or (self._in_head and self.cycle is not None and not self.cycle.response_complete):
            self._start_clock()  # we do not read on while an earlier request of this connection is being answered
        elif self.headers is None or (self.cycle is not None and not self._in_head and self.cycle.response_started):
            self.transport.close()  # nothing was asked, or it has been answered before it was whole
        else:
            self._refuse(
                408,
                "slow",
                f"the request did not arrive within {self.gate.client_timeout_seconds:g} s (BERT_CLIENT_TIMEOUT_SECONDS)",
            )

    def _check_head(self, size: int) -> None:
        if size > self.gate.max_header_bytes:
            self._refuse(
                431,
                "headers_too_large",
                f"the request's head has over {self.gate.max_header_bytes} bytes (BERT_MAX_HEADER_BYTES)",
            )

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answers past the application, which has not started to, and closes."""
        self._refused = True
        self._stop_clock()
        self.gate.refused(status, code)
        if (
            self.cycle is not None
            and not self.cycle.response_complete
            and (self.cycle.response_started or not self.cycle.more_body)
        ):
            self.cycle.keep_alive = False  # an earlier request is being answered: that answer is this connection's last
            return
        self.transport.write(_answer(status, {"error": message, "code": code, "request_id": secrets.token_hex(8)}))
        self.transport.close()


def _answer(status: int, content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, PHRASES[status], len(body)) + body
