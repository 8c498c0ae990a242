"""Limits of a connection: time to arrive, size of the head, unread responses; on a fake transport."""

import asyncio

import pytest

from packbert.service.http import connection as connection_module
from tests.service.fakes import FakeTime, settle
from tests.service.http.connection import CHUNKED, GET, POST, Client, FakeTransport, play_connection


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

    play_connection(story, transports=[FakeTransport])


def test_a_client_that_does_not_read_the_end_of_its_last_answer_is_disconnected() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.transport.unread = 100
        await connection.send(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert connection.statuses == [200]
        assert connection.transport.closed
        await asyncio.sleep(11)
        assert connection.transport.aborted

    play_connection(story, transports=[FakeTransport])


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

    play_connection(story, transports=[FakeTransport])


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
