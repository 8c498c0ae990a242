"""A connection on a fake transport: what it accepts, its limits, when it closes."""

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packbert.service.http import connection as connection_module
from packbert.service.http.limits import BufferedBytes, ConnectionLimits
from tests.service.fakes import FakeTime, as_test, play, settle

POST = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
CHUNKED = b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class FakeTransport(asyncio.Transport):
    protocol: connection_module.Connection

    def __init__(self, protocol: connection_module.Connection) -> None:
        self.protocol = protocol
        self.sockets = socket.socketpair()
        super().__init__({"socket": self.sockets[0]})
        self.written = b""
        self.closed = self.aborted = self.reading_paused = False
        self.unread = 0  # bytes that are written and that the client has not read
        self.most_unread = 2**16  # more of them pause the protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self.most_unread = high or 0

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data
            if self.unread > self.most_unread:
                self.protocol.pause_writing()

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def open(self) -> None:
        self.protocol.connection_made(self)

    def disconnect(self) -> None:
        self.protocol.connection_lost(ConnectionResetError())

    def end(self) -> None:
        for one in self.sockets:
            one.close()


class Client:
    """A connection in front of an application that echoes how many bytes the body has, once `may_respond` is set."""

    def __init__(self, time: FakeTime, max_header_bytes: int = 1000) -> None:
        self.time = time
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []  # of the first request
        self.may_read, self.may_respond = asyncio.Event(), asyncio.Event()
        self.may_read.set()
        self.may_respond.set()
        self.fails = self.answers_early = False
        self.rejections: list[tuple[int, str]] = []  # that are counted by the end
        self.counted: list[tuple[int, str]] = []
        limits = ConnectionLimits(
            client_timeout_seconds=5.0,
            max_header_bytes=max_header_bytes,
            min_read_bytes_per_second=10,
            buffered=BufferedBytes(2**30, lambda: None),
            on_rejected=lambda *each: self.counted.append(each),
        )
        self.protocol = connection_module.Connection(self.app, limits)
        self.transport = FakeTransport(self.protocol)
        self.transport.open()

    async def app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.paths.append(scope["path"])
        self.headers = self.headers or scope["headers"]
        size, more = 0, not self.answers_early
        if self.fails:
            raise ValueError("the application fails")
        await self.may_read.wait()
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await self.may_respond.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]}
        )
        await send({"type": "http.response.body", "body": str(size).encode()})

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closed:
                self.protocol.data_received(piece)
            await settle()

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.transport.written.split(b"HTTP/1.1 ")[1:]]

    def error(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.transport.written.rpartition(b"\r\n\r\n")[2])
        assert set(content) == {"error", "error_type", "code", "request_id"}
        return content


def connected(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test `story`; its first argument is a Client."""

    async def with_client(time: FakeTime, **arguments: Any) -> None:
        connection = Client(time)
        await story(connection, **arguments)
        connection.transport.end()
        await settle()
        assert connection.counted == connection.rejections

    def test(**arguments: Any) -> None:
        play(lambda time: with_client(time, **arguments))

    return as_test(test, story, given=1)


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


UPGRADE = b"POST /embed HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
UPGRADES = {
    "length": UPGRADE + b"content-length: 46\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\nx: 123456\r\n\r\n",
    "chunked": UPGRADE + b"transfer-encoding: chunked\r\n\r\n2e\r\n" + b"x" * 46 + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("pieces", [1, 2, 50])
@pytest.mark.parametrize("kind", UPGRADES)
@connected
async def test_an_upgrade_request_is_answered_as_http_1_with_its_body(
    connection: Client, kind: str, pieces: int
) -> None:
    both = UPGRADES[kind] + GET
    await connection.send(*cut(both, -(-len(both) // pieces)))
    assert connection.paths == ["/embed", "/health"]
    assert connection.transport.written.endswith(b"\r\n\r\n0")
    assert b"\r\n\r\n46HTTP/1.1 200" in connection.transport.written
    assert not connection.transport.closed


@connected
async def test_a_client_is_asked_for_its_body_when_the_application_reads_it(connection: Client) -> None:
    connection.may_read.clear()
    await connection.send(POST.replace(b"host", b"Expect: 100-Continue\r\nhost"))
    assert connection.transport.written == b""
    connection.may_read.set()
    await settle()
    assert connection.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(b"1234567890")
    assert connection.statuses == [100, 200]


@pytest.mark.parametrize(
    ("start", "trickle"),
    [(b"P", b""), (b"GET / HTTP/1.1\r\nx-slow: ", b"a"), (POST, b""), (POST + b"1", b"2")],
    ids=["line", "header", "no body", "body"],
)
@connected
async def test_a_request_that_arrives_too_slowly_gets_408_at_the_timeout(
    connection: Client, start: bytes, trickle: bytes
) -> None:
    connection.rejections = [(408, "slow")]
    await connection.send(start)
    while not connection.transport.closed:
        await asyncio.sleep(1)
        await connection.send(trickle)
    assert connection.time.now <= 6
    assert connection.statuses == [408]
    assert connection.error()["code"] == "slow"


@connected
async def test_time_in_the_queue_does_not_count_as_time_to_arrive(connection: Client) -> None:
    connection.may_respond.clear()
    await connection.send(GET)
    await asyncio.sleep(60)
    connection.may_respond.set()
    await settle()
    assert connection.statuses == [200]


IN_CHUNKS = CHUNKED.partition(b"2\r\n")[0]
LONG_HEADS = {
    "url": b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nx: " + b"a" * 2000 + b"\r\n\r\n",
}
TOO_LARGE = {
    **{f"{name} by {size}": cut(head, size) for name, head in LONG_HEADS.items() for size in (9, 300, 9999)},
    "sum of headers": [b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(400)) + b"\r\n"],
    "trailers": [CHUNKED, b"x-first: ", *[b"x-more: " + b"v" * 80 + b"\r\n"] * 13],
    "a trailer": [CHUNKED, b"x-first: ", *[b"v" * 90] * 13],
    "an extension of a chunk": [CHUNKED.removesuffix(b"0\r\n") + b"1;x=", *[b"v" * 90] * 13],
    "headers that do not end": [b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 60_000],
}


@pytest.mark.parametrize("name", TOO_LARGE)
@connected
async def test_a_head_or_trailer_over_the_limit_gets_431(connection: Client, name: str) -> None:
    connection.rejections = [(431, "headers_too_large")]
    await connection.send(*TOO_LARGE[name])
    assert (connection.statuses, connection.transport.closed) == ([431], True)
    assert connection.error()["code"] == "headers_too_large"
    assert connection.error()["error"].endswith("bytes: shorten them")
    assert connection.paths == ["/embed"] * (TOO_LARGE[name][0][:4] == b"POST")
    assert len(connection.protocol._headers) <= connection_module.SLICE_BYTES / 2, "no more than one slice is parsed"


ACCEPTED = {
    "a body beyond the limit of a head": [POST.replace(b": 10", b": 5000"), b"x" * 5000 + GET[:10], GET[10:]],
    "a head behind a body": [POST[:20], POST[20:].replace(b": 10", b": 2000") + b"x" * 2000 + GET[:20], GET[20:]],
    "a thousand tiny chunks and any number of others": [
        IN_CHUNKS + b"1\r\nx\r\n" * 1000 + (b"40\r\n" + b"y" * 64 + b"\r\n") * 5000 + b"0\r\n\r\n",
        GET,
    ],
}


@pytest.mark.parametrize("name", ACCEPTED)
@connected
async def test_what_is_valid_is_answered(connection: Client, name: str) -> None:
    await connection.send(*ACCEPTED[name])
    assert connection.statuses == [200] * b"".join(ACCEPTED[name]).count(b" HTTP/1.")


@pytest.mark.parametrize(("read_per_second", "aborted"), [(0, True), (9, True), (20, False), (1000, False)])
@connected
async def test_a_client_that_reads_more_slowly_than_the_least_rate_is_disconnected(
    connection: Client, read_per_second: int, aborted: bool
) -> None:
    transport = connection.transport
    transport.unread = 100_000
    connection.protocol.pause_writing()
    for _turn in range(60):
        await asyncio.sleep(1)
        transport.unread -= read_per_second
    assert transport.aborted == aborted


@connected
async def test_a_client_that_does_not_read_its_last_answer_is_disconnected(connection: Client) -> None:
    connection.transport.unread = 100
    await connection.send(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert connection.statuses == [200]
    assert connection.transport.closed
    await asyncio.sleep(11)
    assert connection.transport.aborted


@connected
async def test_an_answer_that_waits_for_its_reader_is_counted(connection: Client) -> None:
    buffered = connection.protocol.limits.buffered
    connection.transport.unread = 5000
    connection.protocol.pause_writing()
    assert list(buffered.unsent.values()) == [5000]
    connection.transport.unread = 1000
    await asyncio.sleep(5.5)
    assert list(buffered.unsent.values()) == [1000]
    connection.protocol.resume_writing()
    assert buffered.unsent == {}
    connection.protocol.pause_writing()
    connection.protocol.connection_lost(None)
    assert buffered.unsent == {}


@connected
async def test_a_request_in_time_is_answered_and_the_connection_stays_open(connection: Client) -> None:
    for _ in range(3):
        await connection.send(POST, b"12345")
        await asyncio.sleep(4)
        await connection.send(b"67890")
    assert connection.statuses == [200] * 3
    assert not connection.transport.closed
    assert connection.time.now == 12


@connected
async def test_a_connection_without_a_request_is_closed_without_a_response(connection: Client) -> None:
    await asyncio.sleep(6)
    assert connection.transport.closed
    assert connection.transport.written == b""


@connected
async def test_nothing_is_written_after_a_disconnect_with_pipelined_requests(connection: Client) -> None:
    connection.may_respond.clear()
    await connection.send(GET + GET)
    connection.transport.disconnect()
    await settle()
    connection.may_respond.set()
    await settle()
    assert connection.transport.written == b""
    assert connection.paths == ["/health"]


@connected
async def test_a_connection_closes_after_the_response_pending_when_draining_began(connection: Client) -> None:
    connection.may_respond.clear()
    await connection.send(GET)
    connection.protocol.close_after_response()
    connection.may_respond.set()
    await settle()
    assert connection.statuses == [200]
    assert b"connection: close" in connection.transport.written


@connected
async def test_a_request_not_read_when_the_port_closes_is_answered(connection: Client) -> None:
    connection.protocol.limits.closing = True
    connection.transport.sockets[1].sendall(GET)
    connection.protocol.shutdown()
    assert not connection.transport.closed
    await connection.send(connection.transport.sockets[0].recv(1000))
    assert connection.statuses == [200]
    assert connection.transport.closed
    connection.protocol.shutdown()


@pytest.mark.parametrize("requests", [0, 1])
@connected
async def test_an_idle_connection_closes_with_the_port(connection: Client, requests: int) -> None:
    await connection.send(*[GET] * requests)
    assert not connection.transport.closed
    connection.protocol.shutdown()
    assert connection.transport.closed


@connected
async def test_pipelined_requests_are_answered_in_turn_and_read_no_faster(connection: Client) -> None:
    connection.may_respond.clear()
    many = 4 * connection_module.SLICE_BYTES // len(GET)
    await connection.send(POST[:-2] + b"\r\n1234567890" + GET * many)
    assert connection.paths == ["/embed"]
    assert len(connection.protocol._exchanges) <= connection_module.SLICE_BYTES // len(GET) + 1
    assert connection.transport.reading_paused
    connection.may_respond.set()
    while len(connection.statuses) <= many and not connection.transport.closed:
        await settle()
    assert connection.statuses == [200] * (many + 1)
    assert not connection.transport.reading_paused


@connected
async def test_a_body_is_not_read_faster_than_the_application_takes_it(connection: Client) -> None:
    connection.may_read.clear()
    size = connection_module.UNREAD_BYTES
    await connection.send(POST.replace(b"10", b"%d" % (2 * size)), b"x" * size)
    assert not connection.transport.reading_paused
    await connection.send(b"x")
    assert connection.transport.reading_paused
    connection.may_read.set()
    await settle()
    assert not connection.transport.reading_paused
    await connection.send(b"x" * (size - 1))
    assert connection.transport.written.endswith(b"\r\n\r\n%d" % (2 * size))


@connected
async def test_the_end_of_a_connection_is_seen_after_a_large_body(connection: Client) -> None:
    connection.may_respond.clear()
    size = 2 * connection_module.UNREAD_BYTES
    await connection.send(POST.replace(b"10", b"%d" % size) + b"x" * size)
    assert not connection.transport.reading_paused
    connection.may_respond.set()


@connected
async def test_an_application_that_fails_is_answered_for_and_the_connection_closes(connection: Client) -> None:
    connection.fails = True
    await connection.send(GET)
    assert connection.statuses == [500]
    assert connection.error()["code"] == "internal"
    assert connection.transport.closed


@connected
async def test_a_request_answered_before_its_body_gets_no_other_response(connection: Client) -> None:
    connection.answers_early = True
    await connection.send(POST + b"123")
    assert connection.statuses == [200]
    assert not connection.transport.closed
    await asyncio.sleep(6)
    assert (connection.statuses, connection.transport.closed) == ([200], True)


@pytest.mark.parametrize(("sent", "statuses"), [(b"", []), (GET[:5], [503]), (POST, [503]), (GET, [200])])
@connected
async def test_a_connection_that_gives_way_says_why_and_counts_no_more(
    connection: Client, sent: bytes, statuses: list[int]
) -> None:
    connection.rejections = [(503, "connections_full")] * (statuses == [503])
    ended: list[int] = []
    connection.protocol.limits.on_connection_lost = lambda: ended.append(1)
    await connection.send(*[sent] * bool(sent))
    connection.protocol.give_way()
    await settle()
    connection.transport.disconnect()
    await settle()
    assert (connection.statuses, ended, connection.transport.closed) == (statuses, [1], True)


CHANGING = re.compile(rb"[0-9a-f]{16}|date: [^\r]+")  # the id of a request that the connection answers itself
TOKENS = st.text("abcdefgXYZ-09", min_size=1, max_size=12).map(str.encode)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30).map(lambda s: s.strip().encode())
HEADERS = st.lists(st.tuples(TOKENS.map(lambda name: b"x-" + name), VALUES), max_size=4)
SPECIAL = st.sampled_from(
    [
        b"",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"expect: 100-continue\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"content-length: 3\r\n",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Mostly valid ones."""
    path = b"/" + draw(TOKENS)
    version = draw(st.sampled_from([b"1.1"] * 8 + [b"1.0", b"2.0"]))
    host = draw(st.sampled_from([b"host: x\r\n"] * 8 + [b"", b"host: x\r\nHost: y\r\n"]))
    headers = host + b"".join(b"%b: %b\r\n" % one for one in draw(HEADERS)) + draw(SPECIAL)
    body = draw(st.binary(max_size=300))
    kind = draw(st.sampled_from(["GET", "length", "chunked", "trailers"]))
    if kind == "GET":
        return b"GET %b HTTP/%b\r\n%b\r\n" % (path, version, headers)
    framing = b"content-length: %d" % len(body)
    if kind != "length":
        framing, end = b"transfer-encoding: chunked", b"x-after: 1\r\n" if kind == "trailers" else b""
        chunks = (b"%x\r\n%b\r\n" % (len(part), part) for part in cut(body, 1 + len(body) // 2))
        body = b"%b0\r\n%b\r\n" % (b"".join(chunks), end)
    return b"POST %b HTTP/%b\r\n%b\r\n%b\r\n%b" % (path, version, framing, headers, body)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests one after the other, of which some bytes may be lost, changed or added."""
    stream = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(stream)))
        stream = stream[:at] + draw(st.binary(max_size=3)) + stream[at + draw(st.integers(0, 3)) :]
    return stream


def answers(pieces: list[bytes]) -> tuple[bytes, bool, list[tuple[int, str]]]:
    """What was written, whether the connection is closed, and what was counted.

    A request that turns out to be malformed behind its head may have begun, and its client been asked for its body.
    """

    async def story(time: FakeTime) -> Client:
        client = Client(time, max_header_bytes=10_000)
        await client.send(*pieces)
        await settle(200)
        client.transport.end()
        return client

    client = play(story)
    assert client.statuses.count(200) <= len(client.paths)
    written = client.transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    return CHANGING.sub(b"", written), client.transport.closed, client.counted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=streams(), cuts=st.lists(st.integers(0, 3000), max_size=12))
def test_the_answers_do_not_depend_on_how_the_bytes_arrive(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert answers(pieces) == answers([stream])
