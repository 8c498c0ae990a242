"""A request in chunks: it has its place from its admission on, runs as they come, and ends once."""

import asyncio

import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import DeadlineExceeded, InferenceFailed, ServiceError, TooMuchForDeadline, Unavailable
from packbert.service.scheduling.batcher import TIMES_ALONE, Batcher
from packbert.service.scheduling.request import Chunk, Request
from packbert.service.scheduling.watchdog import RequestCounts
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played, sequence
from tests.service.scheduling.serving import serving

RATE = 100.0  # tokens a second


def admit(batcher: Batcher, tokens: int, inputs: int, *, timeout: float = 1000.0, most: float = 0.0) -> Request:
    return batcher.admit(tokens, inputs, timeout_seconds=timeout, max_seconds=most)


def chunk_of(*numbers: int, length: int = 4, left: int = 0) -> Chunk[Tokens]:
    return Chunk([sequence(n, length) for n in numbers], left=left)


def numbers_of(*chunks: Chunk[Tokens]) -> list[int]:
    return [int(row["cls"][0]) for chunk in chunks for row in chunk.rows]


@played
async def test_each_chunk_runs_when_it_is_there_and_has_its_rows_when_done(time: FakeTime) -> None:
    runner = FakeRunner()
    async with serving(runner, time) as batcher:
        request = admit(batcher, 20, 5)
        first, empty, *later = chunk_of(1, 2, left=12), chunk_of(left=30), chunk_of(3, left=8), chunk_of(4, 5)
        for chunk in (first, empty):
            await batcher.send(request, chunk)
        assert runner.batches == [[1, 2]]
        dones = [batcher.send(request, chunk) for chunk in later]
        for done in dones:
            await done
        assert numbers_of(first, empty, *later) == [1, 2, 3, 4, 5]
        batcher.leave(request, answered=True)
        assert runner.ran == dict.fromkeys(range(1, 6), 1)
        assert batcher.counts == RequestCounts(received=1, answered=1)


@played
async def test_what_is_expected_counts_as_waiting_until_the_request_leaves(time: FakeTime) -> None:
    async with serving(FakeRunner(held=True), time) as batcher:
        queue, request = batcher.queue, admit(batcher, 600, 10)
        assert (queue.tokens, queue.held, queue.drain_seconds) == (0, 600, 6.0)
        batcher.send(request, chunk_of(*range(5), length=40, left=300))
        assert (queue.tokens, queue.held, queue.expected) == (200, 500, 500)
        for _ in range(2):
            batcher.leave(request)
        assert (queue.tokens, queue.held, queue.expected) == (0, 0, 0)
        assert batcher.counts == RequestCounts(received=1, cancelled=1)


@played
async def test_a_request_that_needs_longer_than_its_deadline_is_refused_with_a_size_that_fits(time: FakeTime) -> None:
    async with serving(FakeRunner(), time) as batcher:
        with pytest.raises(TooMuchForDeadline) as caught:
            admit(batcher, 800, 80, timeout=4.0)
        assert caught.value.code == "too_much_for_deadline"
        assert "about 800 tokens, which take about 8.0 s here, and its deadline is in 4.0 s" in caught.value.message
        assert "send at most 36 inputs like these at once, or a longer x-request-timeout-ms" in caught.value.message
        assert batcher.counts == RequestCounts(received=1, refused=1)
        batcher.leave(admit(batcher, 360, 36, timeout=4.0))


@pytest.mark.parametrize(
    ("least", "most", "seconds"), [(4.0, 1e9, TIMES_ALONE * 8.0), (4.0, 20.0, 20.0), (99.0, 20.0, 99.0)]
)
@played
async def test_the_deadline_of_a_large_request_follows_its_size(
    time: FakeTime, least: float, most: float, seconds: float
) -> None:
    async with serving(FakeRunner(), time, make_queue(tokens_per_second=RATE)) as batcher:
        request = admit(batcher, 800, 80, timeout=least, most=most)
        assert request.deadline == seconds
        batcher.leave(request)


@played
async def test_what_ends_a_request_between_its_chunks_is_raised_when_it_sends_the_next(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.poisoned = {4}
    async with serving(runner, time) as batcher:
        failing, late, closed = (admit(batcher, 24, 6, timeout=timeout) for timeout in (100.0, 5.0, 100.0))
        for chunk in (chunk_of(1, 2, left=16), chunk_of(3, 4, left=8)):
            await batcher.send(failing, chunk)
        await batcher.send(late, chunk_of(5, left=20))
        await asyncio.sleep(6)
        batcher.close("closed")
        errors = []
        for request in (failing, late, closed):
            with pytest.raises(ServiceError) as caught:
                batcher.send(request, chunk_of(6))
            errors.append(caught.value)
            batcher.leave(request)
        assert [type(error) for error in errors] == [InferenceFailed, DeadlineExceeded, Unavailable]
        assert errors[0].index == 3
        assert errors[1].message.endswith("5.000 s in the queue; 1 of 6 inputs had been dispatched, 1 tokenized")
        assert batcher.counts == RequestCounts(received=3, failed=2, expired=1)
