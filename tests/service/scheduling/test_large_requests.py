"""A large request in chunks ends when it would as a whole, and small ones beside it wait no longer for it."""

import asyncio
from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packbert.service.scheduling.watchdog import RequestCounts
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, sequence, submit
from tests.service.scheduling.serving import serving
from tests.service.scheduling.simulation import Arrival, Simulation

LOADS = [0.7, 0.95, 1.3]  # of the device
DEVICE_RATE, DEVICE_BUDGET = 512.0, 512
COUNTS = [1, 1, 1, 1, 4, 32, 300]  # texts of a request


def arrivals_of(seed: int, load: float, *, chunk: int = 10**9, error: float = 0.0) -> list[Arrival]:
    """Sixty requests; the deadlines of a fifth of them are hard to meet."""
    draw, errors = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    at, gap, arrivals = 0.0, 130 * sum(COUNTS) / len(COUNTS) / load / DEVICE_RATE, []
    for _ in range(60):
        at += draw.exponential(gap)
        one = Arrival(at, draw.integers(4, 257, draw.choice(COUNTS)).tolist(), chunk=chunk)
        alone = one.size / DEVICE_RATE
        one.patience = draw.uniform(1, 3) * max(1.0, alone) if draw.random() < 0.2 else max(60.0, 4 * alone)
        one.error = errors.uniform(-error, error)
        arrivals.append(one)
    return arrivals


def simulate(arrivals: list[Arrival]) -> list[Arrival]:
    """Those of up to 4 texts move forward after 8 s."""
    queue = make_queue(
        token_budget=DEVICE_BUDGET, max_tokens=10**9, max_wait_seconds=8.0, tokens_per_second=DEVICE_RATE
    )
    queue._limit.max_wait_seconds = 1e9  # none is refused
    Simulation(queue, DEVICE_RATE).run(arrivals)
    return arrivals


@pytest.mark.parametrize("batches", [1, 2])
def test_chunks_of_a_batch_or_two_end_when_the_whole_request_does(batches: int) -> None:
    for seed in range(5):
        for load in LOADS:
            whole, chunked = (
                simulate(arrivals_of(seed, load, chunk=chunk)) for chunk in (10**9, batches * DEVICE_BUDGET)
            )
            assert [(one.ended, one.expired) for one in chunked] == [(one.ended, one.expired) for one in whole]


def test_chunks_of_wrongly_estimated_requests_end_in_p99_when_whole_ones_do() -> None:
    """By up to 30 %, corrected as they arrive."""
    pairs = list[tuple[Arrival, Arrival]]()
    for seed in range(30):
        for load in LOADS:
            whole, chunked = arrivals_of(seed, load), arrivals_of(seed, load, chunk=DEVICE_BUDGET, error=0.3)
            pairs += zip(simulate(whole), simulate(chunked), strict=True)
    ended = [(a, b) for a, b in pairs if a.ended and b.ended]
    whole_p99, chunked_p99 = np.percentile([(a.seconds, b.seconds) for a, b in ended], 99, axis=0)
    assert chunked_p99 <= 1.02 * whole_p99
    small_whole, small_chunked = np.mean([(a.seconds, b.seconds) for a, b in ended if len(a.lengths) <= 4], axis=0)
    assert small_chunked <= 1.02 * small_whole


RATE, BUDGET, LONGEST = 100.0, 16, 8  # tokens a second, of a batch, of a sequence
SPLIT = 32  # texts of a client's requests that do the same work
BATCH = (BUDGET + LONGEST) / RATE  # seconds of a batch


def waits_beside(lengths: Sequence[int], arrivals: Sequence[tuple[float, int]], *, split: bool) -> list[float]:
    """Seconds that each small request takes beside the large work, which begins at 1 s: a request in chunks, or small
    requests one after another."""
    seconds: list[float] = []

    async def story(time: FakeTime) -> None:
        async def small(at: float, length: int) -> None:
            await asyncio.sleep(at)
            await submit(batcher, [sequence(0, length)], timeout_seconds=1e6)
            seconds.append(time.now - at)

        async def large() -> None:
            await asyncio.sleep(1.0)
            work = [sequence(number, length) for number, length in enumerate(lengths)]
            for first in range(0, len(work), SPLIT if split else len(work)):
                some = work[first : first + SPLIT] if split else work
                rows = (await submit(batcher, some, step=4, timeout_seconds=1e6)).rows
                assert [int(row["cls"][0]) for row in rows] == [*range(first, first + len(some))]

        queue = make_queue(token_budget=BUDGET, max_tokens=10_000)
        async with serving(FakeRunner(seconds_per_token=1 / RATE), time, queue) as batcher:
            await asyncio.gather(large(), *(small(*one) for one in arrivals))
            sent = len(arrivals) + (-(-len(lengths) // SPLIT) if split else 1)
            assert batcher.counts == RequestCounts(received=sent, answered=sent)

    play(story)
    return seconds


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), load=st.sampled_from([0.1, 0.5, 0.9]), texts=st.integers(150, 400))
def test_small_requests_wait_no_longer_beside_a_large_one_than_beside_its_work_in_small_ones(
    seed: int, load: float, texts: int
) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, LONGEST + 1, texts).tolist()
    gaps = draw.exponential((LONGEST + 1) / 2 / (load * RATE), int(20 * load * RATE / LONGEST))
    arrivals = list(zip(np.cumsum(gaps).tolist(), draw.integers(1, LONGEST + 1, len(gaps)).tolist(), strict=True))
    beside_one, beside_many = (waits_beside(lengths, arrivals, split=split) for split in (False, True))
    assert mean(beside_one) <= mean(beside_many) + BATCH
    assert max(beside_one) <= max(beside_many) + 4 * BATCH
