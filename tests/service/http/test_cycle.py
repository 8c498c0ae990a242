"""How a response is written: whole ones in one piece, others as uvicorn writes them; on a fake transport."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.http.connection import cycle as cycle_module
from service.http.connection.cycle import WholeResponseCycle

Message = dict[str, Any]


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Flow:
    """Of a client that has read all: nothing waits."""

    write_paused = False
    drained = 0

    async def drain(self) -> None:
        self.drained += 1

    def resume_reading(self) -> None: ...


class Exchange:
    """A cycle with the messages that an application sends, and what became of them."""

    def __init__(self, *messages: Message, method: str = "POST", keep_alive: bool = True, paused: bool = False) -> None:
        self.transport, self.flow, self.completed = Transport(), Flow(), 0
        self.flow.write_paused = paused
        self.messages, self.options = messages, {"method": method}
        self.keep_alive = keep_alive
        asyncio.run(self.play(self.send_all))

    async def play(self, story: Callable[[WholeResponseCycle], Awaitable[None]]) -> None:
        self.cycle = WholeResponseCycle(
            scope=self.options,  # type: ignore[arg-type]  # of a scope, only the method is read
            transport=self.transport,  # type: ignore[arg-type]
            flow=self.flow,  # type: ignore[arg-type]
            logger=None,  # type: ignore[arg-type]
            access_logger=None,  # type: ignore[arg-type]
            access_log=False,
            default_headers=[(b"date", b"today")],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=self.keep_alive,
            on_response=self.complete,
        )
        await story(self.cycle)

    async def send_all(self, cycle: WholeResponseCycle) -> None:
        for message in self.messages:
            await cycle.send(message)

    def complete(self) -> None:
        self.completed += 1


def head(*headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def test_a_whole_response_is_one_write() -> None:
    exchange = Exchange(head((b"content-length", b"2"), (b"x-request-id", b"one")), body(b"ok"))
    lines = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\nx-request-id: one\r\n\r\nok"
    assert exchange.transport.writes == [lines]
    assert exchange.cycle.response_complete
    assert exchange.completed == 1
    assert not exchange.transport.closed


def test_a_large_body_is_not_copied_behind_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_module, "JOINED_BYTES", 1)
    exchange = Exchange(head((b"content-length", b"2")), body(b"ok"))
    assert exchange.transport.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n", b"ok"]


def test_the_last_response_of_a_connection_says_so_and_closes_it() -> None:
    exchange = Exchange(head((b"content-length", b"2")), body(b"ok"), keep_alive=False)
    assert exchange.transport.writes[0].endswith(b"\r\nconnection: close\r\n\r\nok")
    assert exchange.transport.closed


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"\x00", b"\x7f"])
def test_a_header_cannot_begin_another_one(value: bytes) -> None:
    with pytest.raises(RuntimeError, match="control character"):
        Exchange(head((b"content-length", b"2"), (b"x-request-id", value)), body(b"ok"))


def test_a_body_in_parts_and_one_without_a_length_are_chunked() -> None:
    parts = Exchange(head(), body(b"o", more=True), body(b"k"))
    assert b"".join(parts.transport.writes).endswith(b"transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n")
    alone = Exchange(head(), body(b"ok"))
    assert b"".join(alone.transport.writes).endswith(b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert parts.completed == alone.completed == 1


def test_a_response_to_head_has_the_length_and_no_body() -> None:
    exchange = Exchange(head((b"content-length", b"2")), body(b""), method="HEAD")
    assert b"".join(exchange.transport.writes).endswith(b"content-length: 2\r\n\r\n")
    assert exchange.cycle.response_complete


def test_a_body_of_another_length_than_stated_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Content-Length"):
        Exchange(head((b"content-length", b"1")), body(b"ok"))


def test_an_application_that_fails_after_its_head_is_answered_with_500() -> None:
    """The head has not been written: another one takes its place."""
    exchange = Exchange(
        head((b"content-length", b"2")), head((b"content-length", b"3")) | {"status": 500}, body(b"bad")
    )
    assert exchange.transport.writes == [
        b"HTTP/1.1 500 Internal Server Error\r\ndate: today\r\ncontent-length: 3\r\n\r\nbad"
    ]


def test_a_response_waits_for_a_client_that_does_not_read() -> None:
    exchange = Exchange(head((b"content-length", b"2")), body(b"ok"), paused=True)
    assert exchange.flow.drained == 1
    assert len(exchange.transport.writes) == 1


def test_a_body_that_has_arrived_is_received_at_once_and_then_the_disconnect() -> None:
    async def story(cycle: WholeResponseCycle) -> None:
        cycle.body += b"abc"
        cycle.more_body = False
        cycle.message_event.set()
        assert await cycle.receive() == {"type": "http.request", "body": b"abc", "more_body": False}
        cycle.disconnected = True
        cycle.message_event.set()
        assert await cycle.receive() == {"type": "http.disconnect"}

    asyncio.run(Exchange().play(story))
