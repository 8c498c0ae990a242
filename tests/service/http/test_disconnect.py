"""Callers who leave: what is being done for them ends at once, and nothing is left over."""

import asyncio

import pytest

from service.http.disconnect import ClientConnection, ClientDisconnected
from tests.service.fakes import FakeTime, play, settle


def test_a_caller_who_leaves_ends_the_work_at_once():
    async def story(time: FakeTime) -> None:
        presence, ends = ClientConnection(), []

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ends.append(time.now)

        asyncio.get_running_loop().call_later(3, presence.leave)
        with pytest.raises(ClientDisconnected):
            await presence.run_until_disconnect(work())
        assert ends == [3.0]
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(1)  # the cancellation is used up: whoever answers goes on

    play(story)


def test_work_for_a_caller_who_has_left_before_never_begins():
    async def story(_: FakeTime) -> None:
        presence, begun = ClientConnection(), []

        async def work() -> None:
            begun.append(1)

        presence.leave()
        with pytest.raises(ClientDisconnected):
            await presence.run_until_disconnect(work())
        assert not begun

    play(story)


def test_work_that_is_done_is_handed_over_and_leaving_after_it_does_nothing():
    async def story(_: FakeTime) -> None:
        presence = ClientConnection()

        async def work() -> int:
            return 7

        assert await presence.run_until_disconnect(work()) == 7
        presence.leave()
        await settle()

    play(story)


def test_work_that_fails_tells_why():
    async def story(_: FakeTime) -> None:
        async def work() -> int:
            raise ValueError("why")

        with pytest.raises(ValueError, match="why"):
            await ClientConnection().run_until_disconnect(work())

    play(story)


def test_a_task_that_is_cancelled_though_its_caller_is_there_is_cancelled():
    async def story(_: FakeTime) -> None:
        attending = asyncio.create_task(ClientConnection().run_until_disconnect(asyncio.sleep(1000)))
        await settle()
        attending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attending

    play(story)
