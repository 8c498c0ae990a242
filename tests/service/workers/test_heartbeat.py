"""Signs of life, on a clock that never waits: who was heard and then is not any more, is missed; nobody else."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from service.workers.heartbeat import BEAT_SECONDS, MISSED, pipe, send_heartbeats, wait_for_loss
from tests.service.fakes import FakeTime, play

SILENCE_SECONDS = BEAT_SECONDS * MISSED


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The listener's and the other's."""
    both = pipe()
    yield both
    for end in both:
        os.close(end)


def test_a_process_that_stops_is_missed_after_a_while_and_not_before(ends: tuple[int, int]):
    async def story(time: FakeTime) -> None:
        heard, pulse = ends
        beating, listening = asyncio.create_task(send_heartbeats(pulse)), asyncio.create_task(wait_for_loss(heard))
        await asyncio.sleep(1000)
        assert not listening.done()
        beating.cancel()
        await listening
        assert abs(time.now - 1000 - SILENCE_SECONDS) <= BEAT_SECONDS

    play(story)


def test_a_process_that_still_loads_is_not_missed_nor_is_its_predecessor_heard_in_its_place(ends: tuple[int, int]):
    async def story(_: FakeTime) -> None:
        heard, pulse = ends
        os.write(pulse, b"...")
        listening = asyncio.create_task(wait_for_loss(heard))
        await asyncio.sleep(1000)
        assert not listening.done()
        listening.cancel()

    play(story)


def test_a_supervisor_that_does_not_listen_for_long_does_not_hold_the_process_up(ends: tuple[int, int]):
    async def story(_: FakeTime) -> None:
        _, pulse = ends
        with suppress(BlockingIOError):
            while True:
                os.write(pulse, b"." * 4096)
        beating = asyncio.create_task(send_heartbeats(pulse))
        await asyncio.sleep(10)
        assert not beating.done()
        beating.cancel()

    play(story)
