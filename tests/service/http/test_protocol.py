"""The syntax of HTTP/1.1 that a connection accepts and refuses; on a fake transport."""

import pytest

from tests.service.fakes import FakeTime, settle
from tests.service.http.connection import CHUNKED, GET, POST, Client, play_connection


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


def test_blanks_around_the_value_of_a_header_are_no_part_of_it() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(GET.replace(b"\r\n\r\n", b"\r\nx-api-key: \t k1 \t \r\n\r\n"))
        assert dict(connection.headers)[b"x-api-key"] == b"k1"

    play_connection(story)


@pytest.mark.parametrize("headers", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"], ids=["plain", "upgrade"])
def test_a_url_without_a_path_gets_400(headers: bytes) -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await connection.send(b"GET http://evil HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")
        assert connection.statuses == [400]
        assert connection.error()["code"] == "malformed"

    play_connection(story, rejections=[(400, "malformed")])


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
