"""Which sequences get all cores, what goes before them, and that a dispatched batch is never empty."""

import asyncio

import pytest

from packbert.service.scheduling.cores import (
    MAX_LOOKED_AT,
    MIN_TOKENS_PER_CORE,
    Concurrency,
    all_cores_pay,
)
from packbert.service.scheduling.queue import RequestQueue
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played
from tests.service.scheduling.serving import PER_CORE, ask, outcomes, serving

LONG, SHORT = 512, 32  # tokens
RATE = 1000.0  # tokens a second, of both cores together


def queue() -> RequestQueue:
    return make_queue(token_budget=64, max_tokens=100_000, tokens_per_second=RATE)


def runner() -> FakeRunner:
    return FakeRunner(seconds_per_token=2 / RATE, per_core=2)


@pytest.mark.parametrize(
    ("lengths", "cores", "pay"),
    [
        ([512], 2, True),
        ([512] + [12] * 31, 2, True),
        ([512] * 2, 2, False),  # a core for each
        ([512] * 3, 2, True),
        ([512] * 4, 2, False),
        ([512] * 2, 8, True),
        ([512] + [12] * 60, 2, True),  # these come first: the other core has no work beside the long one
        ([128] + [12] * 200, 2, False),  # little of the whole
        ([127, 12], 2, False),  # too short for all cores
        ([128, 12], 2, True),
        ([], 2, False),
    ],
)
def test_all_cores_pay_where_some_would_be_idle_beside_the_longest(lengths: list[int], cores: int, pay: bool) -> None:
    assert all_cores_pay(lengths, cores) == pay


@played
async def test_short_sequences_run_side_by_side_before_the_long_one(time: FakeTime) -> None:
    run = runner()
    async with serving(run, time, queue(), concurrency=PER_CORE) as batcher:
        tasks = [ask(batcher, 9, length=LONG), *(ask(batcher, n, length=SHORT) for n in (1, 2, 3, 4))]
        assert await outcomes(*tasks) == [[9], [1], [2], [3], [4]]
    assert run.batches == [[1, 2], [3, 4], [9]]
    assert run.all_cores == [False, False, True]


@played
async def test_the_sequences_of_one_request_stay_in_their_order(time: FakeTime) -> None:
    run = runner()
    async with serving(run, time, queue(), concurrency=PER_CORE) as batcher:
        first, last = ask(batcher, 1, 2, length=SHORT), ask(batcher, 7, 8, 9, length=LONG)
        assert await outcomes(first, last) == [[1, 2], [7, 8, 9]]
    assert run.batches == [[1, 2], [7], [8], [9]]
    assert run.all_cores == [False, True, False, False]  # two long ones have a core each


@played
async def test_an_arrival_before_its_turn_gives_the_long_one_a_core(time: FakeTime) -> None:
    """Else the long sequence would wait for as long as short ones arrive, or these for its end."""
    run = runner()
    async with serving(run, time, queue(), concurrency=PER_CORE) as batcher:
        tasks = [ask(batcher, 9, length=LONG), *(ask(batcher, n, length=SHORT) for n in (1, 2, 3, 4))]
        await asyncio.sleep(0.1)
        assert run.batches == [[1, 2], [3, 4]]
        tasks.append(ask(batcher, 5, length=SHORT))
        await outcomes(*tasks)
    assert run.batches[2:] == [[5], [9]]  # a core each, at the same time
    assert run.all_cores[2:] == [False, False]


@pytest.mark.parametrize(("gap", "alone"), [(0.4, False), (0.6, True)])
@played
async def test_long_sequences_share_the_cores_where_requests_arrive_often(
    time: FakeTime, gap: float, alone: bool
) -> None:
    """That is: within the time that all cores need for the long one, 512 tokens at 1000 a second."""
    run = runner()
    async with serving(run, time, queue(), concurrency=PER_CORE) as batcher:
        await ask(batcher, 1, length=4)
        await asyncio.sleep(gap - time.now)
        await outcomes(ask(batcher, 9, length=LONG), ask(batcher, 2, length=SHORT), ask(batcher, 3, length=SHORT))
    assert run.all_cores[-1] == alone
    assert run.batches == [[1], [2, 3], [9]]


@played
async def test_many_sequences_are_shared_without_looking_at_each(time: FakeTime) -> None:
    run = FakeRunner(seconds_per_token=2 / RATE, per_core=64)
    concurrency = Concurrency(64, per_core=True)
    async with serving(run, time, queue(), concurrency=concurrency) as batcher:
        count = MAX_LOOKED_AT + 1
        await outcomes(ask(batcher, 0, length=LONG), *(ask(batcher, n, length=1) for n in range(1, count)))
    assert [0] in run.batches
    assert not any(run.all_cores)


@pytest.mark.parametrize(
    ("queued", "in_flight", "share"),
    [(1000, 0, 250), (1000, 1, 334), (1000, 2, 500), (1000, 3, 1000), (100, 0, MIN_TOKENS_PER_CORE)],
)
def test_every_free_core_gets_its_share_and_no_tokens_are_left_over(queued: int, in_flight: int, share: int) -> None:
    assert Concurrency(4, per_core=True).tokens_for_one(queued, in_flight=in_flight, budget=1000) == share


@pytest.mark.parametrize(("queued", "tokens"), [(256, 128), (257, 65), (372, 93), (512, 128), (10_000, 125)])
def test_the_batches_of_a_core_are_of_one_size(queued: int, tokens: int) -> None:
    assert Concurrency(2, per_core=True).tokens_for_one(queued, in_flight=0, budget=128) == tokens
