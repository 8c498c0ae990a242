"""Which sequences get all cores, what goes before them, and that a dispatched batch is never empty."""

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packbert.service.errors import Overloaded
from packbert.service.scheduling.cores import (
    MAX_LOOKED_AT,
    MIN_TOKENS_PER_CORE,
    Concurrency,
    CoreSharing,
    all_cores_pay,
)
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import QueuedModel, Request, SequenceJob
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played
from tests.service.scheduling.serving import PER_CORE, ask, is_empty, outcomes, serving
from tests.service.scheduling.simulation import Arrival

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


LENGTHS = [1, 10, 12, 63, 64, 65, 127, 128, 129, 256, 511, 512]
MODELS = QueuedModel(), QueuedModel(scale=2.5, budget=100.0)


def dispatch_until_empty(
    draw: np.random.Generator, queue: RequestQueue, cores: int, bursts: list[list[Arrival]]
) -> int:
    """Admits a burst, dispatches for some steps, and so on; ends the runs in flight in any order. The batches taken."""
    sharing = CoreSharing(Concurrency(cores, per_core=True), queue)
    in_flight, unsent = list[list[SequenceJob]](), dict[Request, Arrival]()
    now, batches, alone = 0.0, 0, False
    while bursts or unsent or queue.tokens or in_flight:
        if bursts and (not queue.tokens or draw.random() < 0.3):
            now += float(draw.exponential(0.5))
            for one in bursts.pop(0):
                request = Request(arrived=now, deadline=one.patience, tokens=one.size, model=one.model)
                with suppress(Overloaded):
                    queue.admit(request)
                    unsent[request] = one
        send_some(draw, queue, unsent)
        free = len(in_flight) < cores and not (in_flight and alone)
        selection = sharing.next(len(in_flight)) if free and queue.tokens else None
        if selection is None:
            if in_flight:
                in_flight.pop(int(draw.integers(len(in_flight))))
            else:
                assert not queue.tokens, "nothing runs and nothing is dispatched, though sequences are queued"
            continue
        batch = queue.next_batch(now, selection)
        assert batch.jobs or batch.expired, "a dispatched batch took nothing, though sequences are queued"
        for request in batch.expired:
            unsent.pop(request, None)
        batches += 1
        if batch.jobs:
            alone = not in_flight and (selection.all_cores or not queue.tokens)
            in_flight.append(batch.jobs)
    return batches


def send_some(draw: np.random.Generator, queue: RequestQueue, unsent: dict[Request, Arrival]) -> None:
    """The next chunk of about half of the requests."""
    for request, one in [*unsent.items()]:
        if draw.random() < 0.5:
            queue.add(request, one.next_chunk())
            if not request.left:
                del unsent[request]


def random_bursts(draw: np.random.Generator) -> list[list[Arrival]]:
    return [
        [
            Arrival(
                0.0,
                draw.choice(LENGTHS, int(draw.integers(1, 4))).tolist(),
                patience=float(draw.choice([0.5, 2.0, 1e9], p=[0.05, 0.15, 0.8])),
                chunk=int(draw.choice([10**9, 100])),
                model=MODELS[draw.integers(2)],
            )
            for _ in range(int(draw.integers(1, 80)))
        ]
        for _ in range(int(draw.integers(1, 4)))
    ]


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 4, 8, 16, 64]), st.sampled_from([64, 128, 256]))
def test_no_burst_leaves_the_dispatcher_without_a_batch(seed: int, cores: int, budget: int) -> None:
    draw = np.random.default_rng(seed)
    queue = make_queue(token_budget=budget, max_tokens=200_000, tokens_per_second=1000.0)
    assert dispatch_until_empty(draw, queue, cores, random_bursts(draw)) > 0
    assert is_empty(queue)


@pytest.mark.parametrize("cores", [2, 4, 16, 64])
@played
async def test_a_short_sequence_behind_long_ones_does_not_stop_the_loop(time: FakeTime, cores: int) -> None:
    run = FakeRunner(seconds_per_token=0.001, per_core=cores)
    queue = make_queue(token_budget=256, max_tokens=200_000, tokens_per_second=1000.0)
    async with serving(run, time, queue, concurrency=Concurrency(cores, per_core=True)) as batcher:
        tasks = [*(ask(batcher, n, length=256) for n in range(1, 34)), ask(batcher, 99, length=10)]
        assert await outcomes(*tasks) == [*([n] for n in range(1, 34)), [99]]
