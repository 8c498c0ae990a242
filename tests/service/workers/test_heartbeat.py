"""Heartbeats on a fake clock: a worker is lost when its heartbeats stop, and only then."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from packbert.service.workers.child import INTERVAL_SECONDS, MAX_MISSED, open_pipe, send_heartbeats, wait_for_loss
from tests.service.fakes import FakeTime, play

LOSS_SECONDS = INTERVAL_SECONDS * MAX_MISSED


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The read end and the write end."""
    both = open_pipe()
    yield both
    for end in both:
        os.close(end)


def test_loss_is_reported_some_seconds_after_the_last_heartbeat_and_not_before(ends: tuple[int, int]) -> None:
    async def story(time: FakeTime) -> None:
        read_end, write_end = ends
        sending, waiting = asyncio.create_task(send_heartbeats(write_end)), asyncio.create_task(wait_for_loss(read_end))
        await asyncio.sleep(1000)
        assert not waiting.done()
        sending.cancel()
        await waiting
        assert abs(time.now - 1000 - LOSS_SECONDS) <= INTERVAL_SECONDS

    play(story)


def test_a_loading_worker_is_not_lost_and_heartbeats_of_its_predecessor_are_ignored(ends: tuple[int, int]) -> None:
    async def story(_: FakeTime) -> None:
        read_end, write_end = ends
        os.write(write_end, b"...")
        waiting = asyncio.create_task(wait_for_loss(read_end))
        await asyncio.sleep(1000)
        assert not waiting.done()
        waiting.cancel()

    play(story)


def test_a_full_pipe_does_not_block_the_worker(ends: tuple[int, int]) -> None:
    async def story(_: FakeTime) -> None:
        write_end = ends[1]
        with suppress(BlockingIOError):
            while True:
                os.write(write_end, b"." * 4096)
        sending = asyncio.create_task(send_heartbeats(write_end))
        await asyncio.sleep(10)
        assert not sending.done()
        sending.cancel()

    play(story)
