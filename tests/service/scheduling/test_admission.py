"""A request that brings its sequences in parts: it counts from its admission, runs as they come, and ends once."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from packbert.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    Overloaded,
    ServiceError,
    TooLarge,
    TooMuchForDeadline,
    Unavailable,
)
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Request
from packbert.service.scheduling.watchdog import RequestCounts
from tests.service.fakes import FakeRunner, FakeTime, play, sequence, settle
from tests.service.scheduling.serving import ask, serving

Story = Callable[[Batcher, FakeRunner], Coroutine[None, None, None]]


def run(story: Story, *, held: bool = False, queue: RequestQueue | None = None, per_token: float = 0.0) -> None:
    async def whole(time: FakeTime) -> None:
        runner = FakeRunner(held=held, seconds_per_token=per_token)
        async with serving(runner, time, queue) as batcher:
            await story(batcher, runner)
            runner.release()
            await settle()
            assert (batcher.queue.reserved, batcher.queue.tokens) == (0, 0)

    play(whole)


def begin(batcher: Batcher, sequences: int, tokens: int, timeout: float = 1000.0) -> Request:
    return batcher.begin((), sequences=sequences, tokens=tokens, timeout_seconds=timeout)


def numbers_of(result: Request) -> list[int]:
    return [int(row["cls"][0]) for row in result.rows]


async def error_of(request: Request) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await request.finish()
    return caught.value


def test_the_first_part_runs_before_the_last_is_there_and_rows_keep_their_order() -> None:
    async def story(batcher: Batcher, runner: FakeRunner) -> None:
        request = begin(batcher, 5, 20)
        request.append([sequence(1), sequence(2)], 12)
        await settle()
        assert runner.batches == [[1, 2]]
        assert not request.ended.done()
        finishing = asyncio.ensure_future(request.finish())
        request.append([sequence(3)], 8)
        request.append([sequence(4), sequence(5)], 0)
        assert numbers_of(await finishing) == [1, 2, 3, 4, 5]
        assert runner.ran == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
        assert batcher.counts == RequestCounts(received=1, answered=1)

    run(story)


def test_expected_tokens_count_as_waiting_until_they_are_there() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        queue = batcher.queue
        assert queue.drain_seconds == 0
        request = begin(batcher, 10, 600)
        assert (queue.tokens, queue.reserved) == (0, 600)
        assert queue.drain_seconds == 600 / queue.tokens_per_second
        with pytest.raises(Overloaded):
            batcher.check_admission(500)
        request.append([sequence(1, 40)] * 5, 200)
        assert (queue.tokens, queue.reserved) == (200, 200)
        request.append([sequence(1, 40)] * 5, 0)
        assert (queue.tokens, queue.reserved) == (400, 0)
        request.withdraw()
        assert (queue.tokens, queue.reserved, queue.drain_seconds) == (0, 0, 0)
        assert batcher.counts == RequestCounts(received=2, refused=1, cancelled=1)
        request.withdraw()
        assert batcher.counts.cancelled == 1

    run(story, held=True)


def test_a_request_for_which_there_is_no_room_is_refused_before_it_has_a_sequence() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        first = begin(batcher, 100, 800)
        for _attempt in range(3):
            with pytest.raises(Overloaded):
                begin(batcher, 100, 200)
        assert batcher.counts == RequestCounts(received=4, refused=3)
        first.withdraw()
        begin(batcher, 100, 200).withdraw()

    run(story)


def test_a_request_that_needs_longer_than_its_deadline_is_refused_with_a_size_that_fits() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        with pytest.raises(TooMuchForDeadline) as caught:
            begin(batcher, 80, 800, timeout=4.0)
        assert caught.value.code == "too_much_for_deadline"
        assert "about 800 tokens, which take about 8.0 s here, and its deadline is in 4.0 s" in caught.value.message
        assert "send at most 36 inputs like these at once, or a longer x-request-timeout-ms" in caught.value.message
        begin(batcher, 36, 360, timeout=4.0).withdraw()

    run(story)


def test_a_request_that_turns_out_to_be_too_large_ends_with_a_size_that_fits() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        slow, large = begin(batcher, 100, 100, timeout=2.0), begin(batcher, 100, 100)
        slow.append([sequence(1, 4)] * 10, 360)
        assert "which take about 4.0 s here" in (await error_of(slow)).message
        large.append([sequence(1, 100)] * 10, 1000)
        error = await error_of(large)
        assert isinstance(error, TooLarge)
        assert "about 2000 tokens; the queue takes at most 900 at once (BERT_MAX_WAITING_TOKENS)" in error.message
        assert "send at most 40 inputs like these" in error.message
        large.append([sequence(1, 100)], 0)  # nothing happens
        assert batcher.counts == RequestCounts(received=2, failed=2)

    run(story, held=True)


def test_an_expected_size_of_a_little_more_than_the_queue_takes_is_admitted() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, 100, 1000)
        assert batcher.queue.reserved == 900
        request.append([sequence(n, 8) for n in range(100)], 0)
        assert len((await request.finish()).rows) == 100
        with pytest.raises(TooLarge, match="about 1200 tokens; the queue takes at most 900"):
            begin(batcher, 100, 1200)

    run(story)


def test_the_deadline_ends_a_request_that_still_misses_sequences() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, 3, 12, timeout=5.0)
        request.append([sequence(1)], 8)
        error = await error_of(request)
        assert isinstance(error, DeadlineExceeded)
        assert error.message.endswith("5.000 s in the queue; 1 of 3 inputs had been dispatched, 1 tokenized")
        assert batcher.counts == RequestCounts(received=1, expired=1)

    run(story)


def test_a_failed_run_ends_the_request_before_its_last_sequence() -> None:
    async def story(batcher: Batcher, runner: FakeRunner) -> None:
        runner.poisoned = {2}
        request = begin(batcher, 3, 12)
        request.append([sequence(1), sequence(2)], 4)
        await settle()
        assert request.ended.done()
        assert (await error_of(request)).index == 1
        other = begin(batcher, 1, 4)
        other.append([sequence(2)], 0)
        assert isinstance(await error_of(other), InferenceFailed)

    run(story)


@pytest.mark.parametrize("announced", [1, 3, 100])
def test_a_request_may_bring_more_or_fewer_sequences_than_expected(announced: int) -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, announced, 12)
        request.append([sequence(1), sequence(2)], 4)
        await settle()
        assert not request.ended.done()
        assert batcher.queue.reserved == 4
        request.append([sequence(3)], 0)
        assert numbers_of(await request.finish()) == [1, 2, 3]

    run(story)


def test_sequences_after_the_last_end_the_request() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, 1, 4)
        request.append([sequence(1)], 0)
        request.append([sequence(2)], 0)
        error = await error_of(request)
        assert isinstance(error, InferenceFailed)
        assert error.message == "the request brought inputs after its last"

    run(story)


def test_closing_ends_requests_that_miss_sequences() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, 3, 12)
        batcher.close("closed")
        assert isinstance(await error_of(request), Unavailable)
        with pytest.raises(Unavailable, match="closed"):
            begin(batcher, 3, 10**6)

    run(story)


def test_a_small_request_overtakes_one_whose_parts_arrive_one_by_one() -> None:
    async def story(batcher: Batcher, runner: FakeRunner) -> None:
        request = begin(batcher, 30, 120)
        for n in range(10):
            request.append([sequence(100 + n)] * 3, 120 - 12 * (n + 1))
        small = ask(batcher, 1)
        await small
        assert runner.ran.total() < 31
        await request.finish()

    run(story, per_token=0.01)


def test_a_request_of_several_rounds_gets_the_rows_of_each_and_is_admitted_once() -> None:
    async def story(batcher: Batcher, _: FakeRunner) -> None:
        request = begin(batcher, 3, 12)
        request.append([sequence(1), sequence(2)], 4)
        assert [int(row["cls"][0]) for row in await request.next_rows()] == [1, 2]
        assert batcher.queue.reserved == 4
        request.append([sequence(3)], 0)
        assert [int(row["cls"][0]) for row in await request.next_rows()] == [3]
        await request.finish()
        assert batcher.counts == RequestCounts(received=1, answered=1)

    run(story)


def test_what_ends_a_request_between_two_rounds_is_raised_where_its_rows_are_awaited() -> None:
    async def story(batcher: Batcher, runner: FakeRunner) -> None:
        runner.poisoned = {2}
        failing, late = begin(batcher, 3, 12), begin(batcher, 3, 12, timeout=5.0)
        failing.append([sequence(1), sequence(2)], 4)
        with pytest.raises(InferenceFailed) as caught:
            await failing.next_rows()
        assert caught.value.index == 1
        with pytest.raises(DeadlineExceeded):
            await late.next_rows()
        failing.withdraw()
        late.withdraw()
        assert batcher.counts == RequestCounts(received=2, failed=1, expired=1)

    run(story)
