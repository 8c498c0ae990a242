"""The door as plain ASGI: ids, bodies over the limit, callers who leave."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from service.door import Door, Left, attended
from service.errors import TooLarge
from tests.service.fakes import FakeTime, play, settle


class Visit:
    """One request through the door to an application that reads the whole body and says 204."""

    def __init__(self, *, headers: Sequence[tuple[bytes, bytes]] = (), body: Sequence[bytes] = (b"",)) -> None:
        self.scope: dict[str, Any] = {"type": "http", "headers": list(headers)}
        self._messages = [{"type": "http.request", "body": part, "more_body": n + 1 < len(body)} for n, part in enumerate(body)]
        self.received = 0
        self.request_id = ""
        self.sent: list[Any] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.request_id = scope["state"]["request_id"]
        more = True
        while more:
            message = await receive()
            self.received += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": [(b"x", b"y")]})

    async def receive(self) -> Any:
        return self._messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def go(self, *, max_body_bytes: int = 100) -> "Visit":
        asyncio.run(Door(self.app, max_body_bytes=max_body_bytes)(self.scope, self.receive, self.send))
        return self


def test_a_body_up_to_the_limit_comes_through_whole():
    assert Visit(body=[b"x" * 60, b"y" * 40]).go().received == 100


def test_a_stated_length_over_the_limit_is_refused_before_a_byte_is_read():
    visit = Visit(headers=[(b"content-length", b"101")])
    with pytest.raises(TooLarge, match="101 bytes") as refusal:
        visit.go()
    assert (refusal.value.status, refusal.value.code) == (413, "body_too_large")
    assert len(visit._messages) == 1


def test_a_chunked_body_is_refused_when_it_passes_the_limit_and_not_read_on():
    visit = Visit(body=[b"x" * 60] * 5)
    with pytest.raises(TooLarge):
        visit.go()
    assert len(visit._messages) == 3


@pytest.mark.parametrize("stated", [b"my-id_1", b"x" * 128])
def test_a_sane_id_of_the_callers_own_is_kept(stated: bytes):
    visit = Visit(headers=[(b"x-request-id", stated)]).go()
    assert visit.request_id == stated.decode()
    assert (b"x-request-id", stated) in visit.sent[0]["headers"]


@pytest.mark.parametrize("stated", [b"", b"a b", b"a\r\nset-cookie: x", b"x" * 129, "é".encode()])
def test_an_id_that_could_harm_a_log_or_a_header_is_replaced(stated: bytes):
    visit = Visit(headers=[(b"x-request-id", stated)]).go()
    assert len(visit.request_id) == 16
    assert visit.request_id != Visit().go().request_id


def test_a_caller_who_leaves_ends_the_work_at_once():
    async def story(time: FakeTime) -> None:
        ends: list[float] = []

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ends.append(time.now)

        async def receive() -> Any:
            await asyncio.sleep(3)
            return {"type": "http.disconnect"}

        with pytest.raises(Left):
            await attended(receive, work())
        await settle()
        assert ends == [3.0]
        assert len(asyncio.all_tasks()) == 1

    play(story)


def test_a_caller_who_leaves_before_the_body_is_whole_has_left():
    async def story(_: FakeTime) -> None:
        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def app(_: Any, receive: Any, __: Any) -> None:
            with pytest.raises(Left):
                await receive()

        await Door(app, max_body_bytes=1)({"type": "http", "headers": []}, receive, lambda message: asyncio.sleep(0))

    play(story)


def test_work_that_is_done_is_handed_over_and_nobody_is_left_watching():
    async def story(_: FakeTime) -> None:
        async def work() -> int:
            return 7

        assert await attended(asyncio.Event().wait, work()) == 7  # type: ignore[arg-type]
        await settle()
        assert len(asyncio.all_tasks()) == 1

    play(story)


def test_work_that_fails_tells_why():
    async def story(_: FakeTime) -> None:
        async def work() -> int:
            raise ValueError("why")

        with pytest.raises(ValueError, match="why"):
            await attended(asyncio.Event().wait, work())  # type: ignore[arg-type]

    play(story)
