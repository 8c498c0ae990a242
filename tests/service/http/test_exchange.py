"""How a response is written, and how a request ends with its client; on a fake transport."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from packbert.service.http import exchange as exchange_module
from packbert.service.http.exchange import ClientConnection, ClientDisconnected, Exchange
from tests.service.fakes import FakeTime, on_loop, played, settle

Message = dict[str, Any]


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "date_header", lambda _: (b"date", b"today"))


class FakeConnection:
    """Of a client that has read all, unless `paused`: then it does in the next turn of the loop."""

    def __init__(self, *, paused: bool) -> None:
        self.transport = self
        self.limits = SimpleNamespace(log_access=None)
        self.writes: list[bytes] = []
        self.completed, self.closed, self.waited = 0, False, False
        self.unwritable = asyncio.Event() if paused else None
        if paused:
            asyncio.get_running_loop().call_soon(self.resume_writing)

    def write(self, data: bytes) -> None:
        self.waited |= self.unwritable is not None and self.unwritable.is_set()
        self.writes.append(bytes(data))

    def resume_writing(self) -> None:
        assert self.writes == []
        assert self.unwritable is not None
        self.unwritable.set()

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def on_response_complete(self, exchange: Exchange) -> None:
        self.completed += 1
        self.closed = not exchange.keep_alive


class Play:
    """An exchange with the messages that an application sends, and what became of them."""

    def __init__(self, *messages: Message, paused: bool = False) -> None:
        self.messages, self.paused = messages, paused
        asyncio.run(self.play(self.send_all))

    async def play(self, story: Callable[[Exchange], Awaitable[None]]) -> None:
        self.connection = FakeConnection(paused=self.paused)
        any_connection: Any = self.connection
        scope = {"method": "POST", "http_version": "1.1"}
        self.exchange = Exchange(any_connection, scope, keep_alive=True, continues=False)
        await story(self.exchange)

    async def send_all(self, exchange: Exchange) -> None:
        for message in self.messages:
            await exchange.send(message)

    @property
    def writes(self) -> list[bytes]:
        return self.connection.writes


def head(*headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


CONTROLS = (b"a\r\nb: c", b"a\nb", b"a\rb", b"\x00", b"\x7f")  # in a header's value, which could begin another one
OK, LENGTH = b"HTTP/1.1 200 OK\r\ndate: today\r\n", (b"content-length", b"2")


def test_a_body_without_a_length_is_sent_in_chunks() -> None:
    """All else is in the recorded answers."""
    played = Play(head(), body(b"o", more=True), body(b"k"))
    assert b"".join(played.writes) == OK + b"transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
    assert (played.exchange.complete, played.connection.completed, played.connection.closed) == (True, 1, False)


def test_a_large_body_is_not_copied_behind_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(Play(head(LENGTH), body(b"ok")).writes) == 1
    monkeypatch.setattr(exchange_module, "JOINED_BYTES", 1)
    played = Play(head(LENGTH), body(b"ok"))
    assert played.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n", b"ok"]


def test_an_application_that_fails_after_its_head_is_answered_with_500() -> None:
    """The head has not been written: another one takes its place."""
    played = Play(head(LENGTH), head((b"content-length", b"3")) | {"status": 500}, body(b"bad"))
    assert played.writes == [b"HTTP/1.1 500 Internal Server Error\r\ndate: today\r\ncontent-length: 3\r\n\r\nbad"]


def test_a_response_waits_for_a_client_that_does_not_read() -> None:
    played = Play(head(LENGTH), body(b"ok"), paused=True)
    assert played.connection.waited
    assert len(played.writes) == 1


def test_a_body_is_received_at_once_and_then_the_disconnect() -> None:
    async def story(exchange: Exchange) -> None:
        exchange.add(b"ab")
        exchange.add(b"c")
        exchange.whole = True
        assert await exchange.receive() == {"type": "http.request", "body": b"abc", "more_body": False}
        exchange.disconnect()
        assert await exchange.receive() == {"type": "http.disconnect"}

    asyncio.run(Play().play(story))


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([body(b"ok")], "out of order"),
        ([head(), body(b"ok"), body(b"ok")], "out of order"),
        ([head(), body(b"o", more=True), head()], "out of order"),
        ([{"type": "x"}], "out of order"),
        ([head(LENGTH), body(b"o")], "Content-Length"),
        ([head(LENGTH), body(b"more")], "Content-Length"),
        *(([head(LENGTH, (b"x", value)), body(b"ok")], "control character") for value in CONTROLS),
    ],
)
def test_messages_that_make_no_response_are_errors(messages: list[Message], fault: str) -> None:
    with pytest.raises(RuntimeError, match=fault):
        Play(*messages)


@played
async def test_a_disconnect_cancels_the_work_at_once(time: FakeTime) -> None:
    connection = ClientConnection()
    asyncio.get_running_loop().call_later(3, connection.on_disconnect)
    with pytest.raises(ClientDisconnected), connection:
        await asyncio.sleep(1000)
    assert time.now == 3.0
    assert len(asyncio.all_tasks()) == 1
    await asyncio.sleep(1)  # the task itself is no longer cancelled, and can send its response


@on_loop
async def test_work_does_not_start_after_a_disconnect() -> None:
    connection, started = ClientConnection(), []
    connection.on_disconnect()
    with pytest.raises(ClientDisconnected), connection:
        started.append(1)
    assert not started


@on_loop
async def test_a_disconnect_after_the_work_cancels_nothing() -> None:
    connection = ClientConnection()
    with connection:
        await settle()
    connection.on_disconnect()
    await settle()


@on_loop
async def test_a_cancellation_without_a_disconnect_stays_a_cancellation() -> None:
    async def work() -> None:
        with ClientConnection():
            await asyncio.sleep(1000)

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
