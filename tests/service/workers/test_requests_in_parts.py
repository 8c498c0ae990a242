"""A request whose sequences are sent in parts, over a real unix socket; only the model is fake."""

import asyncio
from pathlib import Path

import pytest

from packbert.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    Overloaded,
    Unavailable,
)
from tests.service.fakes import FakeRunner, make_queue, sequence
from tests.service.workers.engine_processes import (
    numbers_of,
    parts_of,
    play,
    start,
    submit,
    until,
)


def test_a_request_in_parts_runs_before_its_last_part_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            request = parts_of(client, 4, 16)
            request.append([sequence(1), sequence(2)], 8)
            await until(lambda: processes.runner.ran.total() == 2)
            assert processes.batcher.queue.reserved == 8
            request.append([sequence(3)], 4)
            request.append([sequence(4)], 0)  # in the same turn of the loop
            assert numbers_of(await request.finish()) == [1, 2, 3, 4]
            assert numbers_of(await submit(client, 5)) == [5]

    play(story)


def test_a_request_in_parts_that_is_withdrawn_or_cancelled_leaves_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path, FakeRunner(held=True)) as processes:
            client = await processes.connected()
            for at_once in (True, False):
                request, counts = parts_of(client, 3, 12), processes.batcher.counts
                request.append([sequence(1)], 8)
                if not at_once:
                    await until(lambda: processes.batcher.queue.reserved == 8)
                cancelled = counts.cancelled
                request.withdraw()
                await until(lambda: counts.cancelled == cancelled + 1)  # noqa: B023 - called in this turn
                request.append([sequence(2), sequence(3)], 0)  # nothing happens
            finishing = parts_of(client, 3, 12)
            task = asyncio.ensure_future(finishing.finish())
            await until(lambda: processes.batcher.queue.reserved == 12)
            task.cancel()
            await until(lambda: processes.batcher.counts.cancelled == 3)
            assert (processes.batcher.queue.reserved, processes.batcher.queue.tokens) == (0, 0)
            processes.runner.release()
            assert numbers_of(await submit(client, 5)) == [5]

    play(story)


def test_a_request_in_parts_that_the_queue_refuses_ends_and_its_parts_are_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path, waiting=make_queue(token_budget=4, max_tokens=40)) as processes:
            client = await processes.connected()
            first, refused = parts_of(client, 5, 30), parts_of(client, 5, 20)
            refused.append([sequence(1)] * 5, 0)
            with pytest.raises(Overloaded):
                await refused.finish()
            with pytest.raises(Overloaded):  # locally: the queue was full a moment ago
                client.check_admission(20)
            first.append([sequence(n) for n in range(5)], 0)
            assert numbers_of(await first.finish()) == [0, 1, 2, 3, 4]
            assert processes.runner.ran.total() == 5

    play(story)


def test_a_request_in_parts_ends_with_its_connection_and_with_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path, FakeRunner(held=True)) as processes:
            client = await processes.connected()
            request = parts_of(client, 3, 12)
            request.append([sequence(1)], 8)
            await until(lambda: processes.batcher.queue.reserved == 8)
            assert client._writer is not None
            client._writer.stream.transport.abort()
            with pytest.raises(Unavailable, match="being restarted"):
                await request.finish()
            await until(lambda: processes.batcher.counts.in_flight == 0)
            await until(lambda: client._writer is not None)
            hasty = parts_of(client, 3, 6, timeout=0.01)
            with pytest.raises(DeadlineExceeded, match="0 of 3 inputs had been dispatched, 0 tokenized"):
                await hasty.finish()

    play(story)


def test_sequences_after_the_last_fail_the_request(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            request = parts_of(client, 1, 4)
            request.append([sequence(1), sequence(2)], 0)
            request.append([sequence(3)], 0)
            with pytest.raises(InferenceFailed, match="the request brought inputs after its last"):
                await request.finish()

    play(story)


def test_the_rows_of_a_round_come_before_the_next_one_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            request = parts_of(client, 5, 20)
            for reserved, *numbers in ((12, 1, 2), (8, 3), (0, 4, 5)):
                request.append([sequence(number) for number in numbers], reserved)
                assert [int(row["cls"][0]) for row in await request.next_rows()] == numbers
            await request.finish()
            counts = processes.batcher.counts
            assert (counts.received, counts.answered) == (1, 1)
            failing = parts_of(client, 2, 8)
            processes.runner.poisoned = {7}
            failing.append([sequence(7)], 4)
            with pytest.raises(InferenceFailed):
                await failing.next_rows()
            failing.withdraw()

    play(story)
