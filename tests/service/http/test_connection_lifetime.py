"""When a connection stays open and when it closes; on a fake transport."""

import asyncio

import pytest

from packbert.service.http import connection as connection_module
from tests.service.fakes import FakeTime, settle
from tests.service.http.connection import GET, POST, Client, FakeTransport, play_connection


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


def test_a_connection_without_a_request_is_closed_without_a_response() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        await asyncio.sleep(6)
        assert connection.transport.closed
        assert connection.transport.written == b""

    play_connection(story)


def test_nothing_is_written_after_a_disconnect_with_pipelined_requests() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
        connection.may_respond.clear()
        await connection.send(GET + GET)
        connection.transport.disconnect()
        await settle()
        connection.may_respond.set()
        await settle()
        assert connection.transport.written == b""
        assert connection.paths == ["/health"]

    play_connection(story)


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

    play_connection(story, transports=[FakeTransport])


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


def test_pipelined_requests_are_answered_in_turn_and_read_no_faster() -> None:
    async def story(connection: Client, _: FakeTime) -> None:
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
        assert "takes 7 connections: " in connection.error()["error"]
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
        connection.transport.disconnect()
        await settle()
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
        connection.transport.disconnect()
        await settle()
        assert (connection.statuses, ended, connection.transport.closed) == (statuses, [1], True)

    play_connection(story, rejections=[(503, "connections_full")] * (statuses == [503]))
