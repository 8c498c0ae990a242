"""A request's work is cancelled when its client disconnects, and at no other time."""

import asyncio

import pytest

from packbert.service.http.exchange import ClientConnection, ClientDisconnected
from tests.service.fakes import FakeTime, play, settle


def test_a_disconnect_cancels_the_work_at_once() -> None:
    async def story(time: FakeTime) -> None:
        connection = ClientConnection()
        asyncio.get_running_loop().call_later(3, connection.on_disconnect)
        with pytest.raises(ClientDisconnected), connection:
            await asyncio.sleep(1000)
        assert time.now == 3.0
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(1)  # the task itself is no longer cancelled, and can send its response

    play(story)


def test_work_does_not_start_after_a_disconnect() -> None:
    async def story(_: FakeTime) -> None:
        connection, started = ClientConnection(), []
        connection.on_disconnect()
        with pytest.raises(ClientDisconnected), connection:
            started.append(1)
        assert not started

    play(story)


def test_a_disconnect_after_the_work_cancels_nothing() -> None:
    async def story(_: FakeTime) -> None:
        connection = ClientConnection()
        with connection:
            await settle()
        connection.on_disconnect()
        await settle()

    play(story)


def test_an_error_of_the_work_is_raised() -> None:
    async def story(_: FakeTime) -> None:
        with pytest.raises(ValueError, match="why"), ClientConnection():
            raise ValueError("why")

    play(story)


def test_a_cancellation_without_a_disconnect_stays_a_cancellation() -> None:
    async def story(_: FakeTime) -> None:
        async def work() -> None:
            with ClientConnection():
                await asyncio.sleep(1000)

        task = asyncio.create_task(work())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(story)
