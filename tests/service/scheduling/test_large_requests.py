"""A request in parts: one that is larger than the queue, of which a part at a time is there."""

import asyncio
from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packbert.service.errors import Overloaded, ServiceError, TooMuchForDeadline
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.request import Request
from packbert.service.scheduling.watchdog import RequestCounts
from packbert.service.tasks.base import append_in_parts
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, play, sequence, settle
from tests.service.scheduling.serving import serving, submit

RATE, BUDGET, LONGEST, MOST = 100.0, 16, 8, 1000  # tokens a second, of a batch, of a sequence, in the queue
SPLIT = 32  # texts of a client's requests that do the same work
PART = SPLIT * LONGEST
BATCH = (BUDGET + LONGEST) / RATE  # seconds of a batch
LATE = 1e6


def begin(batcher: Batcher, lengths: Sequence[int], *, part: int = PART, timeout: float = LATE) -> Request:
    return batcher.begin((), sequences=len(lengths), tokens=sum(lengths), part=part, timeout_seconds=timeout)


async def bring(request: Request, lengths: Sequence[int], step: int = 5) -> Request:
    """The request with its rows; its sequences are numbered, and come `step` at a time."""
    room = request.part
    try:
        for first in range(0, len(lengths), step):
            some = [sequence(number, lengths[number]) for number in range(first, min(first + step, len(lengths)))]
            room = await append_in_parts(request, some, sum(lengths[first + step :]), room)
        return await request.finish()
    finally:
        request.withdraw()


async def ask_split(batcher: Batcher, lengths: Sequence[int]) -> None:
    """The same sequences as a client sends them that splits its requests, one after another."""
    for first in range(0, len(lengths), SPLIT):
        await submit(batcher, [sequence(0, one) for one in lengths[first : first + SPLIT]], timeout_seconds=LATE)


def waits_beside(lengths: Sequence[int], arrivals: Sequence[tuple[float, int]], *, split: bool) -> list[float]:
    """Seconds that each small request takes beside the large work, which begins at 1 s."""
    seconds: list[float] = []

    async def story(time: FakeTime) -> None:
        async def small(at: float, length: int) -> None:
            await asyncio.sleep(at)
            await submit(batcher, [sequence(0, length)], timeout_seconds=LATE)
            seconds.append(time.now - at)

        async def large() -> None:
            await asyncio.sleep(1.0)
            if split:
                await ask_split(batcher, lengths)
                return
            rows = (await bring(begin(batcher, lengths), lengths)).rows
            assert [int(row["cls"][0]) for row in rows] == list(range(len(lengths)))

        queue = make_queue(token_budget=BUDGET, max_tokens=MOST)
        async with serving(FakeRunner(seconds_per_token=1 / RATE), time, queue) as batcher:
            await asyncio.gather(large(), *(small(*one) for one in arrivals))
            sent = len(arrivals) + (-(-len(lengths) // SPLIT) if split else 1)
            assert batcher.counts == RequestCounts(received=sent, answered=sent)
            assert (queue.tokens, queue.reserved, queue.oldest) == (0, 0, None)

    play(story)
    return seconds


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), load=st.sampled_from([0.1, 0.5, 0.9]), texts=st.integers(150, 400))
def test_small_requests_wait_no_longer_beside_a_large_one_than_beside_its_work_in_small_parts(
    seed: int, load: float, texts: int
) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, LONGEST + 1, texts).tolist()
    gaps = draw.exponential((LONGEST + 1) / 2 / (load * RATE), int(20 * load * RATE / LONGEST))
    arrivals = list(zip(np.cumsum(gaps).tolist(), draw.integers(1, LONGEST + 1, len(gaps)).tolist(), strict=True))
    beside_one, beside_many = (waits_beside(lengths, arrivals, split=split) for split in (False, True))
    assert mean(beside_one) <= mean(beside_many) + BATCH
    assert max(beside_one) <= max(beside_many) + 4 * BATCH


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=150, max_size=400),
    part=st.integers(LONGEST, MOST // 2),
    end=st.floats(0.1, 30.0),
)
def test_a_large_request_has_no_more_than_its_part_in_the_queue_and_leaves_nothing_when_it_is_cancelled(
    lengths: list[int], part: int, end: float
) -> None:
    async def story(time: FakeTime) -> None:
        queue = make_queue(token_budget=BUDGET, max_tokens=MOST)
        async with serving(FakeRunner(seconds_per_token=1 / RATE), time, queue) as batcher:
            asking = asyncio.ensure_future(bring(begin(batcher, lengths, part=part), lengths))
            while time.now < end and not asking.done():
                assert queue.expected <= part
                await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.wait([asking])
            await settle()
            assert (queue.tokens, queue.reserved, queue.oldest, batcher.counts.in_flight) == (0, 0, None, 0)
            assert (batcher.counts.received, adds_up(batcher)) == (1, True)
            assert await submit(batcher, [sequence(1)], timeout_seconds=LATE)

    play(story)


def test_a_part_has_its_room_though_others_fill_the_queue_meanwhile() -> None:
    async def story(time: FakeTime) -> None:
        queue, lengths = make_queue(token_budget=BUDGET, max_tokens=MOST), [LONGEST] * 400
        async with serving(FakeRunner(seconds_per_token=1 / RATE), time, queue) as batcher:
            asking = asyncio.ensure_future(bring(begin(batcher, lengths), lengths))
            others, refused = list[Request](), 0
            while not asking.done():
                try:
                    others.append(batcher.begin([sequence(1)] * 10, timeout_seconds=LATE))
                except Overloaded:
                    refused += 1
                assert queue.expected <= MOST
                await asyncio.sleep(0.25)
            assert len((await asking).rows) == len(lengths)
            assert refused > 0
            for other in others:
                await other.finish()

    play(story)


def test_two_large_requests_share_the_device() -> None:
    async def story(time: FakeTime) -> None:
        queue, lengths = make_queue(token_budget=BUDGET, max_tokens=MOST), [LONGEST] * 400
        async with serving(FakeRunner(seconds_per_token=1 / RATE), time, queue) as batcher:
            both = [begin(batcher, lengths) for _ in range(2)]
            first, second = (asyncio.ensure_future(bring(one, lengths)) for one in both)
            await first
            assert both[1].answered > 300
            await second

    play(story)


def test_the_first_part_is_refused_for_the_whole_request() -> None:
    async def story(time: FakeTime) -> None:
        queue, lengths = make_queue(token_budget=BUDGET, max_tokens=MOST), [LONGEST] * 400
        async with serving(FakeRunner(held=True), time, queue) as batcher:
            other = batcher.begin([sequence(1)] * 200, timeout_seconds=LATE)
            with pytest.raises(Overloaded) as full:
                begin(batcher, lengths)
            assert full.value.retry_after
            with pytest.raises(TooMuchForDeadline, match=r"about 3200 tokens, which take about 32\.0 s here"):
                begin(batcher, lengths, part=64, timeout=20.0)
            assert batcher.counts == RequestCounts(received=3, refused=2)
            other.withdraw()

    play(story)


def test_a_failed_run_or_a_deadline_ends_a_large_request_in_any_part() -> None:
    async def story(time: FakeTime) -> None:
        queue, lengths = make_queue(token_budget=BUDGET, max_tokens=MOST), [LONGEST] * 400
        runner = FakeRunner(seconds_per_token=1 / RATE)
        async with serving(runner, time, queue) as batcher:
            runner.poisoned = {333}
            with pytest.raises(ServiceError) as failed:
                await bring(begin(batcher, lengths), lengths)
            assert failed.value.index == 333
            runner.seconds_per_token *= 2
            with pytest.raises(ServiceError, match=r"; \d+ of \d+ inputs had been dispatched"):
                await bring(begin(batcher, lengths, timeout=40.0), lengths)
            assert batcher.counts == RequestCounts(received=2, failed=1, expired=1)

    play(story)
