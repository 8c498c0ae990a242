"""How long requests wait in a simulation of the device: no longer than promised, nor beside a large one in chunks."""

import heapq
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.service.fakes import make_queue
from tests.service.scheduling.simulation import Arrival, Simulation, poisson

RATE, BUDGET, LIMIT = 6000.0, 128, 10.0
BATCH = 2 * BUDGET / RATE  # the batch in progress and the last one of the request, in seconds
BULK, MEDIUM, SHORT = [22] * 2000, [62] * 32, [12]


def simulation(*, rate: float = RATE, max_wait_seconds: float = LIMIT) -> Simulation:
    """The queue believes RATE; the device computes `rate`."""
    return Simulation(
        make_queue(token_budget=BUDGET, max_tokens=200_000, max_wait_seconds=max_wait_seconds, tokens_per_second=RATE),
        rate,
    )


def stream(lengths: list[int], load: float, seconds: float, *, seed: int = 1, after: float = 0.0) -> list[Arrival]:
    arrivals = poisson(np.random.default_rng(seed), tokens_per_second=load * RATE, lengths=lengths, seconds=seconds)
    for one in arrivals:
        one.at += after
    return arrivals


def waits(arrivals: Sequence[Arrival], lengths: list[int]) -> list[float]:
    """Seconds that the answered requests of these lengths waited beyond their own runs, in order."""
    return sorted(one.seconds - one.size / RATE for one in arrivals if one.lengths == lengths and one.ended)


@pytest.mark.parametrize("load", [2, 5, 10])
def test_at_an_overload_of_equal_requests_each_waits_as_long_as_promised(load: float) -> None:
    device, arrivals = simulation(), stream(MEDIUM, load, 25)
    for one in arrivals[::10]:
        one.asks = True
    device.run(arrivals)
    promises = [(one, one.promised) for one in arrivals if one.ended and one.promised is not None]
    assert promises
    assert all(one.seconds - one.size / RATE <= promised + BATCH for one, promised in promises)
    assert waits(arrivals, MEDIUM)[-1] <= LIMIT + BATCH
    assert device.busy_seconds >= 0.97 * device.now  # idle only before the queue forms


def test_short_requests_stay_fast_beside_ten_times_the_load_in_medium_ones() -> None:
    device, arrivals = simulation(), stream(MEDIUM, 10, 25) + stream(SHORT, 0.2, 25, seed=2)
    device.run(arrivals)
    assert waits(arrivals, SHORT)[-1] <= 0.1
    assert len(waits(arrivals, SHORT)) == sum(one.lengths == SHORT for one in arrivals)
    assert waits(arrivals, MEDIUM)[-1] <= 1.2 * LIMIT


def test_medium_requests_are_refused_if_short_ones_leave_little() -> None:
    device = simulation()
    arrivals = stream(SHORT, 0.9, 50) + stream(MEDIUM, 9, 40, seed=2, after=10)
    device.run(arrivals)
    # they are not refused while the queue drains in half of the limit
    assert waits(arrivals, MEDIUM)[-1] <= 1.6 * LIMIT
    assert len(waits(arrivals, MEDIUM)) > 5
    assert waits(arrivals, SHORT)[-1] <= 0.5 * LIMIT


def test_a_late_request_gets_half_of_each_batch_beside_short_ones() -> None:
    device, early = simulation(), [Arrival(0.0, MEDIUM) for _ in range(3)]
    arrivals = early + stream(SHORT, 3, 20)
    device.run(arrivals)
    assert all(one.ended is not None and one.seconds <= 1.3 * LIMIT for one in early)
    assert waits(arrivals, SHORT)[-1] <= 1.2 * LIMIT


def test_short_texts_stay_fast_beside_bulk_requests_that_never_end() -> None:
    device = simulation()
    arrivals = [Arrival(7.0 * number, BULK) for number in range(6)] + stream(SHORT, 0.05, 40)
    device.run(arrivals)
    assert waits(arrivals, SHORT)[-1] <= 2 * BATCH
    assert len(waits(arrivals, BULK)) == 6


@pytest.mark.parametrize("lengths", [SHORT, [60], [62] * 8, MEDIUM], ids=["12", "60", "496", "1984"])
def test_refused_requests_return_within_twice_the_drain_of_the_queue(lengths: list[int]) -> None:
    device = simulation(max_wait_seconds=3.0)
    while device.admit(Arrival(0.0, lengths)):
        pass
    refused = [Arrival(0.0, lengths) for _ in range(40)]
    assert not any(device.admit(one) for one in refused)
    returns = sorted(one.retry_at or 0.0 for one in refused)
    assert len(set(returns)) >= min(4, 40 * sum(lengths) / RATE), "they are spread, in whole seconds"
    device.run([])
    assert returns[-1] <= 2 * device.now
    back = [Arrival(at, lengths) for at in returns[:1]]
    device.run(back)
    assert back[0].ended is not None


def run_with_refused(
    load: float, lengths: list[int], *, seconds: float, every: int, seed: int
) -> list[tuple[float, float]]:
    """Requests of one text each; of those that are refused, one in `every` is admitted all the same.

    The wait that its error named and its wait, in seconds.
    """
    draw, device = np.random.default_rng(seed), simulation()
    arrivals = stream([102], load, seconds, seed=seed)
    named: dict[Arrival, float] = {}
    for number, one in enumerate(arrivals):
        one.lengths = [int(draw.choice(lengths))]
        while device.queue.oldest is not None and device.now < one.at:
            device.run_batch()
        device.now = max(device.now, one.at)
        if (error := device.admit_or_refuse(one)) and number % every == 0 and one.at < seconds - 2 * LIMIT:
            named[one] = float(re.findall(r"about ([0-9.]+) s", error)[0])
            device.admit_past_the_limit(one)
    device.run([])
    return [(wait, one.seconds - one.size / RATE) for one, wait in named.items()]


def test_the_wait_that_a_refusal_names_is_nearly_the_real_one() -> None:
    waits = run_with_refused(2, [*range(4, 200)], seconds=60, every=30, seed=3)
    ratios = np.array([max(named / real, real / named) for named, real in waits])
    assert len(ratios) >= 30
    assert np.median(ratios) <= 1.2
    assert np.percentile(ratios, 90) <= 1.5


requests = st.lists(
    st.tuples(st.floats(0, 3), st.lists(st.integers(1, 8), min_size=1, max_size=60), st.sampled_from([10**9, 64, 128])),
    min_size=1,
    max_size=25,
)
FILL = 64 / 57  # of a batch of 64 at least 57 tokens are used, where no text is longer than 8


@given(requests, requests, st.lists(st.integers(1, 8), min_size=1, max_size=60))
def test_no_later_request_delays_a_request_beyond_its_promise(
    before: list[tuple[float, list[int], int]], later: list[tuple[float, list[int], int]], lengths: list[int]
) -> None:
    """Some of the others are sent in chunks, and rather too many tokens are expected of them."""
    device = Simulation(make_queue(token_budget=64, max_tokens=10**6, tokens_per_second=100.0), 100.0)
    ours = Arrival(3.0, lengths, asks=True)
    others = [Arrival(at, lengths, chunk=chunk, error=0.2) for at, lengths, chunk in before]
    others += [Arrival(3.0 + at, lengths + one, chunk=chunk) for at, one, chunk in later]
    device.run([*others, ours])
    assert ours.promised is not None
    assert ours.seconds <= FILL * (ours.promised + ours.size / 100) + 2 * 64 / 100


def shared_equally(arrivals: Sequence[Arrival], rate: float) -> dict[Arrival, float]:
    """When each request would end if all shared the device equally (processor sharing)."""
    todo = [(one.at, number, one) for number, one in enumerate(arrivals)]
    heapq.heapify(todo)
    left: dict[Arrival, float] = {}
    ends, now = {}, 0.0
    while todo or left:
        if not left:
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            one = heapq.heappop(todo)[2]
            left[one] = float(one.size)
        step = min(left.values()) * len(left) / rate
        if todo:
            step = min(step, todo[0][0] - now)
        now += step
        for one in list(left):
            left[one] -= step * rate / len(left) if step else 0.0
        for one in [one for one in left if left[one] <= 1e-6]:
            ends[one] = now
            del left[one]
    return ends


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 60), st.sampled_from([10**9, 4, 8])), min_size=1, max_size=30)
)
def test_no_request_ends_later_than_under_equal_sharing(found: list[tuple[float, int, int]]) -> None:
    """Chunks of a batch or more come in time."""
    arrivals = [Arrival(at, [1] * size, chunk=chunk) for at, size, chunk in found]
    ends = shared_equally(arrivals, 10.0)
    queue = make_queue(token_budget=4, max_tokens=10**6, max_wait_seconds=1e9, tokens_per_second=10.0)
    Simulation(queue, 10.0).run(arrivals)
    for one in arrivals:
        assert one.ended is not None
        assert one.ended <= ends[one] + 3 * 4 / 10


@pytest.mark.parametrize("rate", [0.5 * RATE, RATE, 5 * RATE])
def test_most_clients_succeed_when_they_retry_as_told(rate: float) -> None:
    queue = make_queue(token_budget=BUDGET, max_tokens=80_000, max_wait_seconds=LIMIT, tokens_per_second=rate)
    device, tries, served = Simulation(queue, rate), [(0.0, client, 0) for client in range(24)], 0
    while tries:
        at, client, failed = heapq.heappop(tries)
        while device.queue.oldest is not None and device.now < at:
            device.run_batch()
        device.now = max(device.now, at)
        one = Arrival(device.now, [60] * 1000)
        if device.admit(one):
            served += 1
        elif failed < 2:
            heapq.heappush(tries, (one.retry_at or 0.0, client, failed + 1))
    assert served >= 18


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
    for seed in range(12):
        for load in LOADS:
            whole, chunked = arrivals_of(seed, load), arrivals_of(seed, load, chunk=DEVICE_BUDGET, error=0.3)
            pairs += zip(simulate(whole), simulate(chunked), strict=True)
    ended = [(a, b) for a, b in pairs if a.ended and b.ended]
    whole_p99, chunked_p99 = np.percentile([(a.seconds, b.seconds) for a, b in ended], 99, axis=0)
    assert chunked_p99 <= 1.02 * whole_p99
    small_whole, small_chunked = np.mean([(a.seconds, b.seconds) for a, b in ended if len(a.lengths) <= 4], axis=0)
    assert small_chunked <= 1.02 * small_whole
