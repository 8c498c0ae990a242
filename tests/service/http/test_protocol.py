"""Limits of a connection: time to arrive, size of the head, unread responses, draining; on a fake transport."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from packbert.service.http import connection as connection_module
from packbert.service.http.limits import BufferedBytes, ConnectionLimits
from tests.service.fakes import FakeTime, play, settle

POST = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class FakeTransport(asyncio.Transport):
    protocol: connection_module.Connection

    def __init__(self) -> None:
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


class Client:
    """A connection in front of an application that echoes how many bytes the body has, once `may_respond` is set."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []  # of the first request
        self.may_read, self.may_respond = asyncio.Event(), asyncio.Event()
        self.may_read.set()
        self.may_respond.set()
        self.fails = self.answers_early = False
        self.transport = FakeTransport()
        self.protocol = self.transport.protocol = connection_module.Connection(self.app, limits)
        self.protocol.connection_made(self.transport)

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


def play_connection(
    story: Callable[[Client, FakeTime], Awaitable[None]], *, rejections: Sequence[tuple[int, str]] = ()
) -> None:
    async def played(time: FakeTime) -> None:
        counted: list[tuple[int, str]] = []
        limits = ConnectionLimits(
            client_timeout_seconds=5.0,
            max_header_bytes=1000,
            min_read_bytes_per_second=10,
            buffered=BufferedBytes(2**30, lambda: None),
            on_rejected=lambda status, code: counted.append((status, code)),
        )
        connection = Client(limits)
        await story(connection, time)
        for one in connection.transport.sockets:
            one.close()
        assert counted == list(rejections)

    play(played)


def test_a_request_that_arrives_in_time_is_answered_and_the_connection_stays_open() -> None:
    async def story(connection: Client, time: FakeTime) -> None:
        for _ in range(3):
            await connection.send(POST, b"12345")
            await asyncio.sleep(4)
            await connection.send(b"67890")
        assert connection.statuses == [200] * 3
        assert not connection.transport.closed
        assert time.now == 12

    play_connection(story)


@pytest.mark.parametrize(
    ("start", "trickle"),
    [(b"P", b""), (b"GET / HTTP/1.1\r\nx-slow: ", b"a"), (POST, b""), (POST + b"1", b"2")],
    ids=["line", "header", "no body", "body"],
)
def test_a_request_that_arrives_too_slowly_gets_408_at_the_timeout(start: bytes, trickle: bytes) -> None:
    async def story(connection: Client, time: FakeTime) -> None:
        await connection.send(start)
        while not connection.transport.closed:
            await asyncio.sleep(1)
            await connection.send(trickle)
        assert time.now <= 6
        assert connection.statuses == [408]
        assert connection.error()["code"] == "slow"

    play_connection(story, rejections=[(408, "slow")])


def test_a_connection_without_a_request_is_closed_without_a_response() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await asyncio.sleep(6)
        assert connection.transport.closed
        assert connection.transport.written == b""

    play_connection(story)


def test_time_in_the_queue_does_not_count_as_time_to_arrive() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        await connection.send(GET)
        await asyncio.sleep(60)
        connection.may_respond.set()
        await settle()
        assert connection.statuses == [200]

    play_connection(story)


@pytest.mark.parametrize("pieces", [1, 7, 200], ids=lambda n: f"{n} pieces")
@pytest.mark.parametrize(
    "head",
    [b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * 2000 + b"\r\n\r\n"],
    ids=["url", "header"],
)
def test_a_head_over_the_limit_gets_431_before_the_application_is_called(head: bytes, pieces: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        size = len(head) // pieces
        await connection.send(*(head[i : i + size] for i in range(0, len(head), size)))
        assert connection.statuses == [431]
        assert connection.error()["code"] == "headers_too_large"
        assert connection.error()["error"].endswith("bytes: shorten them")
        assert connection.transport.closed
        assert connection.paths == []

    play_connection(story, rejections=[(431, "headers_too_large")])


def test_the_limit_holds_for_the_sum_of_all_headers() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(400)) + b"\r\n")
        assert connection.statuses == [431]

    play_connection(story, rejections=[(431, "headers_too_large")])


def test_a_body_does_not_count_as_head() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(
            b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n", b"x" * 5000 + GET[:10], GET[10:]
        )
        assert connection.statuses == [200, 200]

    play_connection(story)


def test_bytes_that_are_not_http_get_400_with_the_standard_error_body() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.statuses == [400]
        assert connection.error()["code"] == "malformed"
        assert connection.transport.closed

    play_connection(story, rejections=[(400, "malformed")])


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        (b"content-length: -1", "Invalid character in Content-Length"),
        (b"content-length: 5\r\ncontent-length: 6", "Duplicate Content-Length"),
        (b"two words: 1", "Invalid header token"),
    ],
)
def test_a_request_that_cannot_be_parsed_is_rejected_with_the_reason(headers: bytes, fault: str) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"POST /embed HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n\r\n")
        assert connection.error()["error"] == f"the request is not valid HTTP/1.1: {fault}"

    play_connection(story, rejections=[(400, "malformed")])


def test_a_smuggled_request_is_rejected() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(
            b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
        )
        assert connection.statuses == [400]
        assert "/smuggled" not in connection.paths

    play_connection(story, rejections=[(400, "malformed")])


CHUNKED = b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize("trailer", [b"x-more: " + b"v" * 80 + b"\r\n", b"v" * 90], ids=["many", "one"])
def test_endless_trailers_get_431(trailer: bytes) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED, b"x-first: ", *[trailer] * 13)
        assert connection.statuses == [431]
        assert connection.transport.closed

    play_connection(story, rejections=[(431, "headers_too_large")])


def test_an_endless_extension_of_a_chunk_gets_431() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED.removesuffix(b"0\r\n") + b"1;x=", *[b"v" * 90] * 13)
        assert connection.statuses == [431]
        assert connection.transport.closed

    play_connection(story, rejections=[(431, "headers_too_large")])


def test_trailers_are_not_passed_on_as_headers() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED + b"x-request-id: mine\r\n\r\n", GET)
        assert connection.headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
        assert connection.statuses == [200, 200]

    play_connection(story)


@pytest.mark.parametrize("size", [1, 0x1000])
@pytest.mark.parametrize("cut", range(6))
def test_a_long_chunked_body_does_not_count_as_trailers(size: int, cut: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
        chunks, head = chunk * 400, CHUNKED.partition(b"2\r\n")[0]
        pieces = [chunks[start : start + len(chunk)] for start in range(cut, len(chunks), len(chunk))]
        await connection.send(head + chunks[:cut], *pieces, b"0\r\n\r\n")
        assert connection.transport.written.endswith(b"\r\n\r\n%d" % (400 * size))

    play_connection(story)


def test_the_head_of_each_request_is_measured_separately() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(POST[:20], POST[20:].replace(b": 10", b": 2000") + b"x" * 2000 + GET[:20], GET[20:])
        assert connection.statuses == [200, 200]

    play_connection(story)


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
def test_an_upgrade_request_is_answered_as_http_1_with_its_body(request_bytes: bytes, pieces: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        both = request_bytes + GET
        step = -(-len(both) // pieces)
        await connection.send(*(both[start : start + step] for start in range(0, len(both), step)))
        assert connection.paths == ["/embed", "/health"]
        assert connection.transport.written.endswith(b"\r\n\r\n0")
        assert b"\r\n\r\n46HTTP/1.1 200" in connection.transport.written
        assert not connection.transport.closed

    play_connection(story)


def test_connect_gets_400_and_later_bytes_are_ignored() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"CONNECT / HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        assert connection.statuses == [400]
        assert connection.paths == []
        assert connection.transport.closed

    play_connection(story, rejections=[(400, "malformed")])


def test_garbage_after_a_request_does_not_lose_its_response() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        await connection.send(GET + b"\x00rubbish\r\n\r\n")
        connection.may_respond.set()
        await settle()
        assert connection.statuses == [200, 400]
        assert connection.transport.closed

    play_connection(story, rejections=[(400, "malformed")])


def test_nothing_is_written_after_a_disconnect_with_pipelined_requests() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        await connection.send(GET + GET)
        connection.protocol.connection_lost(ConnectionResetError())
        connection.may_respond.set()
        await settle()
        assert connection.transport.written == b""
        assert connection.paths == ["/health"]

    play_connection(story)


@pytest.mark.parametrize(("read_per_second", "aborted"), [(0, True), (9, True), (20, False), (1000, False)])
def test_a_client_that_reads_more_slowly_than_the_least_rate_is_disconnected(
    read_per_second: int, aborted: bool
) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        transport = connection.transport
        transport.unread = 100_000
        connection.protocol.pause_writing()
        for _turn in range(60):
            await asyncio.sleep(1)
            transport.unread -= read_per_second
        assert transport.aborted == aborted

    play_connection(story)


def test_a_client_that_does_not_read_the_end_of_its_last_answer_is_disconnected() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.transport.unread = 100
        await connection.send(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert connection.statuses == [200]
        assert connection.transport.closed
        await asyncio.sleep(11)
        assert connection.transport.aborted

    play_connection(story)


def test_blanks_around_the_value_of_a_header_are_no_part_of_it() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(GET.replace(b"\r\n\r\n", b"\r\nx-api-key: \t k1 \t \r\n\r\n"))
        assert dict(connection.headers)[b"x-api-key"] == b"k1"

    play_connection(story)


def test_an_answer_that_waits_for_its_reader_is_counted_until_it_is_read_or_dropped() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
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

    play_connection(story)


def test_headers_that_do_not_end_are_parsed_up_to_the_limit_only() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 60_000)
        assert connection.statuses == [431]
        assert len(connection.protocol._headers) <= connection_module.SLICE_BYTES / 2

    play_connection(story, rejections=[(431, "headers_too_large")])


def test_a_body_in_tiny_chunks_is_rejected() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED.partition(b"2\r\n")[0] + b"1\r\nx\r\n" * 40_000)
        assert connection.statuses == [400]
        assert "the first 1015 chunks of the body hold 1015 bytes" in connection.error()["error"]
        assert connection.transport.closed

    play_connection(story, rejections=[(400, "malformed")])


def test_a_client_may_send_a_thousand_tiny_chunks_and_any_number_of_others() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        chunks = b"1\r\nx\r\n" * 1000 + (b"40\r\n" + b"y" * 64 + b"\r\n") * 5000
        await connection.send(CHUNKED.partition(b"2\r\n")[0] + chunks + b"0\r\n\r\n", GET)
        assert connection.statuses == [200, 200]

    play_connection(story)


@pytest.mark.parametrize("headers", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"], ids=["plain", "upgrade"])
def test_a_url_without_a_path_gets_400(headers: bytes) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"GET http://evil HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")
        assert connection.statuses == [400]
        assert connection.error()["code"] == "malformed"

    play_connection(story, rejections=[(400, "malformed")])


def test_a_connection_is_idle_before_its_first_request_and_between_two() -> None:
    async def story(connection: Client, time: FakeTime) -> None:
        await asyncio.sleep(1)
        assert connection.protocol.idle_since() == 0
        await connection.send(POST)
        assert connection.protocol.idle_since() is None
        connection.may_respond.clear()
        await connection.send(b"1234567890")
        assert connection.protocol.idle_since() is None
        connection.may_respond.set()
        await settle()
        assert connection.protocol.idle_since() == time.now == 1
        await connection.send(GET[:5])
        assert connection.protocol.idle_since() is None

    play_connection(story)


def test_a_response_that_is_read_before_the_timeout_keeps_its_connection() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.transport.unread = 1000
        connection.protocol.pause_writing()
        await asyncio.sleep(4)
        connection.protocol.resume_writing()
        await asyncio.sleep(60)
        assert not connection.transport.aborted

    play_connection(story)


def test_while_draining_each_connection_closes_after_its_next_response() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(GET)
        assert not connection.transport.closed
        connection.protocol.limits.closing = True
        await connection.send(GET)
        assert connection.statuses == [200, 200]
        assert connection.transport.written.count(b"connection: close") == 1
        assert connection.transport.closed

    play_connection(story)


def test_a_connection_closes_after_the_response_pending_when_draining_began() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        await connection.send(GET)
        connection.protocol.close_after_response()
        connection.may_respond.set()
        await settle()
        assert connection.statuses == [200]
        assert b"connection: close" in connection.transport.written

    play_connection(story)


def test_a_request_that_has_arrived_and_was_not_read_when_the_port_closes_is_answered() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.protocol.limits.closing = True
        connection.transport.sockets[1].sendall(GET)
        connection.protocol.shutdown()
        assert not connection.transport.closed
        await connection.send(connection.transport.sockets[0].recv(1000))
        assert connection.statuses == [200]
        assert connection.transport.closed
        connection.protocol.shutdown()

    play_connection(story)


@pytest.mark.parametrize("requests", [0, 1])
def test_an_idle_connection_closes_with_the_port(requests: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(*[GET] * requests)
        assert not connection.transport.closed
        connection.protocol.shutdown()
        assert connection.transport.closed

    play_connection(story)


@pytest.mark.parametrize("more", [b"", b"\0\0\x12\4\0\0\0\0\0"])
def test_http_2_by_prior_knowledge_is_refused_with_a_sentence(more: bytes) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + more)
        assert connection.statuses == [505]
        assert "HTTP/2 without TLS (h2c) is not supported: send HTTP/1.1" in connection.error()["error"]
        assert (connection.paths, connection.transport.closed) == ([], True)

    play_connection(story, rejections=[(505, "malformed")])


@pytest.mark.parametrize(
    ("version", "hosts", "status"), [("1.1", 0, 400), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 2, 400)]
)
def test_a_request_has_one_host_and_one_of_http_1_0_at_most_one(version: str, hosts: int, status: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(f"GET / HTTP/{version}\r\n".encode() + b"Host: x\r\n" * hosts + b"\r\n")
        assert connection.statuses == [status]
        if status == 400:
            assert connection.error()["error"] == f"the request has {hosts} Host headers: send one"
            assert (connection.paths, connection.transport.closed) == ([], True)

    play_connection(story, rejections=[(400, "malformed")] * (status == 400))


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_another_version_of_http_gets_505(version: str) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(f"GET /health HTTP/{version}\r\nhost: x\r\n\r\n".encode())
        assert connection.statuses == [505]
        assert f"HTTP/{version} is not supported" in connection.error()["error"]
        assert (connection.paths, connection.transport.closed) == ([], True)

    play_connection(story, rejections=[(505, "malformed")])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"gzip, chunked", 501),
        (b"gzip\r\ntransfer-encoding: chunked", 501),
        (b"gzip", 501),
        (b"chunked, chunked", 400),
        (b"chunked\r\nTransfer-Encoding: chunked", 400),
    ],
)
def test_another_transfer_coding_than_chunked_is_refused(headers: bytes, status: int) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED.replace(b"chunked", headers) + b"\r\n")
        assert connection.statuses == [status]
        assert connection.paths == []

    play_connection(story, rejections=[(status, "malformed")])


def test_a_transfer_coding_has_no_case_and_a_te_header_is_no_transfer_coding() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(CHUNKED.replace(b"chunked", b"Chunked\r\nte: gzip, chunked") + b"\r\n")
        assert connection.transport.written.endswith(b"\r\n\r\n2")

    play_connection(story)


def test_pipelined_requests_are_answered_in_turn_and_read_no_faster() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        many = 4 * connection_module.SLICE_BYTES // len(GET)
        await connection.send(POST[:-2] + b"\r\n1234567890" + GET * many)
        assert connection.paths == ["/embed"]
        assert len(connection.protocol._exchanges) <= connection_module.SLICE_BYTES // len(GET) + 1
        assert connection.transport.reading_paused
        connection.may_respond.set()
        await settle(20 * many)
        assert connection.statuses == [200] * (many + 1)
        assert not connection.transport.reading_paused

    play_connection(story)


def test_a_body_is_not_read_faster_than_the_application_takes_it() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
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

    play_connection(story)


def test_the_end_of_a_connection_is_seen_after_a_large_body_that_arrived_at_once() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        size = 2 * connection_module.UNREAD_BYTES
        await connection.send(POST.replace(b"10", b"%d" % size) + b"x" * size)
        assert not connection.transport.reading_paused
        connection.may_respond.set()

    play_connection(story)


def test_a_client_that_expects_it_is_asked_for_its_body_when_the_application_reads_it() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_read.clear()
        await connection.send(POST.replace(b"host", b"Expect: 100-Continue\r\nhost"))
        assert connection.transport.written == b""
        connection.may_read.set()
        await settle()
        assert connection.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(b"1234567890")
        assert connection.statuses == [100, 200]

    play_connection(story)


def test_an_expectation_of_http_1_0_is_ignored() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(POST.replace(b"1.1\r\n", b"1.0\r\nExpect: 100-Continue\r\n"), b"1234567890")
        assert connection.statuses == [200]

    play_connection(story)


@pytest.mark.parametrize("head", [GET.replace(b"/1.1", b"/1.0"), GET.replace(b"host", b"connection: close\r\nhost")])
def test_a_connection_of_http_1_0_or_of_a_client_that_closes_it_ends_with_the_response(head: bytes) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(head + GET)
        assert connection.statuses == [200]
        assert b"\r\nconnection: close\r\n" in connection.transport.written
        assert connection.transport.closed

    play_connection(story)


def test_an_application_that_fails_is_answered_for_and_the_connection_closes() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.fails = True
        await connection.send(GET)
        assert connection.statuses == [500]
        assert connection.error()["code"] == "internal"
        assert connection.transport.closed

    play_connection(story)


def test_a_request_that_was_answered_before_its_body_is_closed_without_another_response() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.answers_early = True
        await connection.send(POST + b"123")
        assert connection.statuses == [200]
        assert not connection.transport.closed
        await asyncio.sleep(6)
        assert (connection.statuses, connection.transport.closed) == ([200], True)

    play_connection(story)


def test_a_connection_in_the_reserve_answers_probes_only_and_closes() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        limits = connection.protocol.limits
        connection.protocol.in_reserve = True
        limits.is_over, limits.probes = lambda: True, frozenset({"/health"})
        await connection.send(GET.replace(b"/health", b"/health?x=1"))
        assert (connection.statuses, connection.transport.closed) == ([200], True)

    play_connection(story)

    async def refused(connection: Client, _: FakeTime) -> None:
        limits = connection.protocol.limits
        connection.protocol.in_reserve = True
        limits.is_over, limits.most = lambda: True, 7
        await connection.send(POST)
        assert connection.statuses == [503]
        assert b"\r\nretry-after: 1\r\n" in connection.transport.written
        assert "takes 7 connections (BERT_MAX_CONNECTIONS)" in connection.error()["error"]
        assert connection.paths == []

    play_connection(refused, rejections=[(503, "connections_full")])


def test_a_connection_leaves_the_reserve_when_another_has_ended() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.protocol.in_reserve = True
        await connection.send(GET, GET)
        assert connection.statuses == [200, 200]
        assert not connection.transport.closed

    play_connection(story)


def test_unfinished_requests_are_listed_by_what_is_missing() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        limits, protocol = connection.protocol.limits, connection.protocol

        def listed() -> tuple[bool, bool]:
            return protocol in limits.heads, protocol in limits.bodies

        assert listed() == (True, False)  # it has sent nothing
        await connection.send(POST)
        assert listed() == (False, True)
        await connection.send(b"1234567890")
        assert listed() == (False, False)
        await connection.send(GET[:5])
        assert listed() == (True, False)
        await connection.send(GET[5:])
        assert listed() == (False, False)
        connection.may_respond.clear()
        await connection.send(GET + GET[:5])
        assert listed() == (False, False)  # its next request is not waited for yet
        connection.may_respond.set()
        await settle()
        assert listed() == (True, False)
        protocol.connection_lost(None)
        assert listed() == (False, False)

    play_connection(story)


@pytest.mark.parametrize(("sent", "statuses"), [(b"", []), (GET[:5], [503]), (POST, [503]), (GET, [200])])
def test_a_connection_that_gives_way_says_why_and_does_not_count_any_more(sent: bytes, statuses: list[int]) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        ended: list[int] = []
        connection.protocol.limits.on_connection_lost = lambda: ended.append(1)
        await connection.send(*[sent] * bool(sent))
        connection.protocol.give_way()
        await settle()
        connection.protocol.connection_lost(None)
        assert (connection.statuses, ended, connection.transport.closed) == (statuses, [1], True)

    play_connection(story, rejections=[(503, "connections_full")] * (statuses == [503]))
