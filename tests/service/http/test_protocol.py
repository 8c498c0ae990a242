"""How a request arrives: its head's size, its time, and the last answers of a connection, on a fake transport and a fake clock."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.http.protocol import ConnectionLimits, LimitedHttpProtocol
from tests.service.fakes import FakeTime, play, settle

POST = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        self.sockets = socket.socketpair()
        super().__init__({"socket": self.sockets[0]})
        self.written = b""
        self.closed = self.aborted = False
        self.unread = 0  # bytes that are written and not taken

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """A protocol in front of an application that echoes how many bytes the body has, when `free` is set."""

    def __init__(self, gate: ConnectionLimits) -> None:
        self.asked: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []  # of the first request
        self.free = asyncio.Event()
        self.free.set()
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            http=LimitedHttpProtocol.bind(gate),
            ws="none",
            lifespan="off",
            date_header=False,
            server_header=False,
        )
        config.load()
        self.transport = FakeTransport()
        self.protocol = LimitedHttpProtocol.bind(gate)(
            config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
        )
        self.protocol.connection_made(self.transport)

    async def app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.asked.append(scope["path"])
        self.headers = self.headers or scope["headers"]
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await self.free.wait()
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
        assert set(content) == {"error", "code", "request_id"}
        return content


def meet(story: Callable[[Connection, FakeTime], Awaitable[None]], *, refusals: Sequence[tuple[int, str]] = ()) -> None:
    async def played(time: FakeTime) -> None:
        told: list[tuple[int, str]] = []
        gate = ConnectionLimits(
            client_timeout_seconds=5.0, max_header_bytes=1000, refused=lambda status, code: told.append((status, code))
        )
        connection = Connection(gate)
        await story(connection, time)
        for one in connection.transport.sockets:
            one.close()
        assert told == list(refusals)

    play(played)


def test_a_request_that_arrives_in_time_is_answered_and_the_connection_stays():
    async def story(connection: Connection, time: FakeTime) -> None:
        for _ in range(3):
            await connection.send(POST, b"12345")
            await asyncio.sleep(4)
            await connection.send(b"67890")
        assert connection.statuses == [200] * 3
        assert not connection.transport.closed
        assert time.now == 12

    meet(story)


@pytest.mark.parametrize(
    ("start", "trickle"),
    [(b"P", b""), (b"GET / HTTP/1.1\r\nx-slow: ", b"a"), (POST, b""), (POST + b"1", b"2")],
    ids=["line", "header", "no body", "body"],
)
def test_a_request_that_trickles_in_is_cut_at_the_deadline_with_408(start: bytes, trickle: bytes):
    async def story(connection: Connection, time: FakeTime) -> None:
        await connection.send(start)
        while not connection.transport.closed:
            await asyncio.sleep(1)
            await connection.send(trickle)
        assert time.now <= 6
        assert connection.statuses == [408]
        assert connection.error()["code"] == "slow"

    meet(story, refusals=[(408, "slow")])


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word():
    async def story(connection: Connection, _: FakeTime) -> None:
        await asyncio.sleep(6)
        assert connection.transport.closed
        assert connection.transport.written == b""

    meet(story)


def test_time_in_the_line_is_not_time_to_arrive():
    async def story(connection: Connection, _: FakeTime) -> None:
        connection.free.clear()
        await connection.send(GET)
        await asyncio.sleep(60)
        connection.free.set()
        await settle()
        assert connection.statuses == [200]

    meet(story)


@pytest.mark.parametrize("pieces", [1, 7, 200], ids=lambda n: f"{n} pieces")
@pytest.mark.parametrize(
    "head",
    [b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * 2000 + b"\r\n\r\n"],
    ids=["url", "header"],
)
def test_a_head_over_the_limit_is_refused_with_431_before_the_application_sees_it(head: bytes, pieces: int):
    async def story(connection: Connection, _: FakeTime) -> None:
        size = len(head) // pieces
        await connection.send(*(head[i : i + size] for i in range(0, len(head), size)))
        assert connection.statuses == [431]
        assert connection.error()["code"] == "headers_too_large"
        assert connection.transport.closed
        assert connection.asked == []

    meet(story, refusals=[(431, "headers_too_large")])


def test_many_headers_count_together():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(400)) + b"\r\n")
        assert connection.statuses == [431]

    meet(story, refusals=[(431, "headers_too_large")])


def test_a_body_is_no_part_of_the_head():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(
            b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n", b"x" * 5000 + GET[:10], GET[10:]
        )
        assert connection.statuses == [200, 200]

    meet(story)


def test_what_is_not_http_gets_400_in_the_one_shape():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.statuses == [400]
        assert connection.error()["code"] == "malformed"
        assert connection.transport.closed

    meet(story, refusals=[(400, "malformed")])


def test_a_smuggled_request_is_refused():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(
            b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
        )
        assert connection.statuses == [400]
        assert "/smuggled" not in connection.asked

    meet(story, refusals=[(400, "malformed")])


CHUNKED = b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize("trailer", [b"x-more: " + b"v" * 80 + b"\r\n", b"v" * 90], ids=["many", "one"])
def test_trailers_without_end_are_refused_as_a_head_without_end_is(trailer: bytes):
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(CHUNKED, b"x-first: ", *[trailer] * 13)
        assert connection.statuses == [431]
        assert connection.transport.closed

    meet(story, refusals=[(431, "headers_too_large")])


def test_trailers_are_no_headers():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(CHUNKED + b"x-request-id: mine\r\n\r\n", GET)
        assert connection.headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
        assert connection.statuses == [200, 200]

    meet(story)


@pytest.mark.parametrize("size", [1, 0x1000])
@pytest.mark.parametrize("cut", range(6))
def test_a_body_in_chunks_is_no_head_without_end(size: int, cut: int):
    async def story(connection: Connection, _: FakeTime) -> None:
        chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
        chunks, head = chunk * 400, CHUNKED.partition(b"2\r\n")[0]
        pieces = [chunks[start : start + len(chunk)] for start in range(cut, len(chunks), len(chunk))]
        await connection.send(head + chunks[:cut], *pieces, b"0\r\n\r\n")
        assert connection.transport.written.endswith(b"\r\n\r\n%d" % (400 * size))

    meet(story)


def test_the_head_of_the_next_request_is_measured_alone():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(POST[:20], POST[20:].replace(b": 10", b": 2000") + b"x" * 2000 + GET[:20], GET[20:])
        assert connection.statuses == [200, 200]

    meet(story)


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


@pytest.mark.parametrize("pieces", [1, 2, 50], ids=["whole", "in two", "in pieces"])
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /embed HTTP/1.1\r\nhost: x\r\n"
        + UPGRADE
        + b"content-length: 46\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\nx: 123456\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nhost: x\r\n"
        + UPGRADE
        + b"transfer-encoding: chunked\r\n\r\n2e\r\n"
        + b"x" * 46
        + b"\r\n0\r\n\r\n",
    ],
    ids=["length", "chunked"],
)
def test_a_request_that_asks_for_another_protocol_is_answered_in_this_one_with_its_body(
    request_bytes: bytes, pieces: int
):
    async def story(connection: Connection, _: FakeTime) -> None:
        both = request_bytes + GET
        step = -(-len(both) // pieces)
        await connection.send(*(both[start : start + step] for start in range(0, len(both), step)))
        assert connection.asked == ["/embed", "/health"]
        assert connection.transport.written.endswith(b"\r\n\r\n0")
        assert b"\r\n\r\n46HTTP/1.1 200" in connection.transport.written
        assert not connection.transport.closed

    meet(story)


def test_connect_is_refused_and_what_follows_is_not_read():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(b"CONNECT / HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        assert connection.statuses == [400]
        assert connection.asked == []
        assert connection.transport.closed

    meet(story, refusals=[(400, "malformed")])


def test_rubbish_behind_a_request_does_not_harm_its_answer():
    async def story(connection: Connection, _: FakeTime) -> None:
        connection.free.clear()
        await connection.send(GET + b"\x00rubbish\r\n\r\n")
        connection.free.set()
        await settle()
        assert connection.statuses == [200]
        assert connection.transport.closed

    meet(story, refusals=[(400, "malformed")])


def test_nothing_is_written_to_who_left_with_requests_in_the_pipeline():
    async def story(connection: Connection, _: FakeTime) -> None:
        connection.free.clear()
        await connection.send(GET + GET)
        connection.protocol.connection_lost(ConnectionResetError())
        connection.free.set()
        await settle()
        assert connection.transport.written == b""
        assert connection.asked == ["/health"]

    meet(story)


def test_an_answer_of_which_nothing_is_taken_is_given_up_and_a_slow_reader_is_not():
    async def story(connection: Connection, _: FakeTime) -> None:
        transport = connection.transport
        transport.unread = 1000
        connection.protocol.pause_writing()
        for _ in range(4):
            await asyncio.sleep(4)
            transport.unread -= 1
        assert not transport.aborted
        await asyncio.sleep(11)
        assert transport.aborted

    meet(story)


def test_an_answer_that_is_taken_in_the_end_leaves_its_connection_alone():
    async def story(connection: Connection, _: FakeTime) -> None:
        connection.transport.unread = 1000
        connection.protocol.pause_writing()
        await asyncio.sleep(4)
        connection.protocol.resume_writing()
        await asyncio.sleep(60)
        assert not connection.transport.aborted

    meet(story)


def test_while_draining_each_connection_closes_after_its_next_answer():
    async def story(connection: Connection, _: FakeTime) -> None:
        await connection.send(GET)
        assert not connection.transport.closed
        type(connection.protocol).gate.draining = True
        await connection.send(GET)
        assert connection.statuses == [200, 200]
        assert connection.transport.written.count(b"connection: close") == 1
        assert connection.transport.closed

    meet(story)


def test_an_answer_under_way_when_draining_starts_is_the_connections_last():
    async def story(connection: Connection, _: FakeTime) -> None:
        connection.free.clear()
        await connection.send(GET)
        connection.protocol.close_after_answer()
        connection.free.set()
        await settle()
        assert connection.statuses == [200]
        assert b"connection: close" in connection.transport.written

    meet(story)
