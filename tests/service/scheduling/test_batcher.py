"""The batcher on a fake runner and a fake clock: every request ends exactly once and gets its own rows."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packbert.service.errors import DeadlineExceeded, InferenceFailed, Overloaded, ServiceError, Unavailable
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import WHOLE_BUDGET, NextBatch, Selection
from packbert.service.scheduling.watchdog import INTERVALS, BatchReport, Watchdog
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, play, played, sequence, settle, submit
from tests.service.scheduling.serving import PER_CORE, ask, numbers, outcomes, serving


@played
async def test_each_request_gets_its_own_rows_in_its_own_order(time: FakeTime) -> None:
    async with serving(FakeRunner(), time) as batcher:
        assert await outcomes(ask(batcher, 1, 2, 3), ask(batcher, 7), ask(batcher, 9, 8)) == [[1, 2, 3], [7], [9, 8]]


@played
async def test_an_idle_batcher_runs_a_request_at_once(time: FakeTime) -> None:
    async with serving(FakeRunner(seconds_per_token=0.25), time) as batcher:
        answer = await ask(batcher, 1)
    assert time.now == 1.0
    assert (answer.request.queue_seconds, answer.request.forward_seconds) == (0.0, 1.0)


class CountingQueue(RequestQueue):
    calls = 0

    def next_batch(self, now: float, selection: Selection = WHOLE_BUDGET) -> NextBatch:
        self.calls += 1
        return super().next_batch(now, selection)


@pytest.mark.parametrize("concurrency", [Concurrency(1), Concurrency(2), PER_CORE])
@played
async def test_a_lone_request_takes_one_call_of_next_batch(time: FakeTime, concurrency: Concurrency) -> None:
    queue = CountingQueue(token_budget=8, max_tokens=100, max_wait_seconds=10, tokens_per_second=100)
    async with serving(FakeRunner(seconds_per_token=0.1), time, queue, concurrency=concurrency) as batcher:
        for number in range(3):
            await ask(batcher, number)
            await settle()
        assert queue.calls == 3


@played
async def test_requests_that_arrive_during_a_run_share_the_next_batch(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time) as batcher:
        tasks = [ask(batcher, 1)]
        await settle()
        tasks += [ask(batcher, 2), ask(batcher, 3)]
        await settle()
        runner.release()
        await asyncio.gather(*tasks)
    assert runner.batches == [[1], [2, 3]]


@played
async def test_only_a_full_batch_is_prepared_while_another_runs(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, make_queue(token_budget=8), concurrency=Concurrency(2)) as batcher:
        tasks = [ask(batcher, 1)]
        await settle()
        tasks.append(ask(batcher, 2))
        await settle()
        assert runner.batches == [[1]]
        tasks += [ask(batcher, n) for n in (3, 4, 5, 6)]
        await settle()
        assert runner.batches == [[1], [2, 3]]
        runner.release()
        assert await outcomes(*tasks) == [[n] for n in range(1, 7)]
    assert runner.batches == [[1], [2, 3], [4, 5], [6]]


@played
async def test_requests_cancelled_or_expired_in_the_queue_never_run_while_a_batch_is_prepared(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, make_queue(token_budget=8), concurrency=Concurrency(2)) as batcher:
        tasks = [ask(batcher, n) for n in range(6)]
        await settle()
        cancelled, expired = ask(batcher, 7), ask(batcher, 8, timeout=3.0)
        await settle()
        cancelled.cancel()
        await asyncio.sleep(4)
        runner.release()
        ends = [*([n] for n in range(6)), asyncio.CancelledError, DeadlineExceeded]
        assert await outcomes(*tasks, cancelled, expired) == ends
    assert runner.ran == dict.fromkeys(range(6), 1)


@played
async def test_the_wait_of_a_prepared_batch_counts_as_queue_time(time: FakeTime) -> None:
    reports: list[BatchReport] = []
    runner = FakeRunner(seconds_per_token=0.5)
    async with serving(runner, time, concurrency=Concurrency(2), report=reports.append) as batcher:
        answers = await asyncio.gather(*(ask(batcher, n) for n in range(6)))
        assert [(one.waited_seconds, one.ran_seconds) for one in reports] == [(0.0, 4.0), (4.0, 4.0), (8.0, 4.0)]
        assert [answer.request.queue_seconds for answer in answers] == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0]
        assert {answer.request.forward_seconds for answer in answers} == {4.0}


@played
async def test_the_wait_of_a_prepared_batch_does_not_count_towards_its_timeout(time: FakeTime) -> None:
    runner, timeouts = FakeRunner(seconds_per_token=0.5), list[float]()
    watchdog = Watchdog(time.clock, 5.0, lambda: timeouts.append(time.now))
    async with serving(runner, time, watchdog=watchdog, concurrency=Concurrency(2)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(6))) == [[n] for n in range(6)]
        assert timeouts == []
        runner.hold()
        hanging = [ask(batcher, n) for n in range(4)]
        await asyncio.sleep(6)
        assert 17.0 <= timeouts[0] <= 17.0 + 5.0 / INTERVALS
        batcher.fail_all("stuck")
        assert await outcomes(*hanging) == [Unavailable] * 4
        runner.release()


@played
async def test_queued_tokens_are_shared_between_cores_and_each_core_is_free_by_itself(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=0.1, per_core=2)
    async with serving(runner, time, make_queue(token_budget=100), concurrency=PER_CORE) as batcher:
        tasks = [ask(batcher, n, length=64 if n == 1 else 80) for n in (1, 2, 3)]
        assert await outcomes(*tasks) == [[1], [2], [3]]
        assert runner.batches == [[1], [2], [3]]
        assert runner.all_cores == [False, False, False]
        assert time.now == pytest.approx(6.4 + 8.0)  # the first core is free after 6.4 s, whatever the other does


@played
async def test_runs_side_by_side_count_once_as_forward_time(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=0.1, per_core=2)
    async with serving(runner, time, make_queue(token_budget=100), concurrency=PER_CORE) as batcher:
        answer = await ask(batcher, 1, 2, 3, length=80)
        assert [answer.request.queue_seconds, answer.request.forward_seconds] == pytest.approx([0.0, 16.0])


@played
async def test_a_batch_that_runs_alone_uses_all_cores(time: FakeTime) -> None:
    runner = FakeRunner(held=True, per_core=2)
    async with serving(runner, time, make_queue(token_budget=100), concurrency=PER_CORE) as batcher:
        first = ask(batcher, 1)
        await settle()
        others = [ask(batcher, n, length=70) for n in (2, 3)]
        await settle()
        assert (runner.batches, runner.all_cores) == ([[1]], [True])
        runner.release()
        assert await outcomes(first, *others) == [[1], [2], [3]]
        assert (runner.batches, runner.all_cores) == ([[1], [2], [3]], [True, False, False])


@played
async def test_an_arrival_wakes_one_of_the_loops_that_wait(time: FakeTime) -> None:
    runner = FakeRunner(held=True, per_core=8)
    async with serving(runner, time, concurrency=Concurrency(8, per_core=True)) as batcher:
        await settle()
        waiting = list(batcher.dispatcher._idle)
        first = ask(batcher, 1)
        await settle()
        assert [loop.done() for loop in waiting].count(True) == 1
        runner.release()
        assert await outcomes(first) == [[1]]


@played
async def test_a_full_queue_rejects_and_admits_again_when_drained(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, make_queue(token_budget=8, max_tokens=16)) as batcher:
        tasks = [ask(batcher, n) for n in range(4)]
        await settle()
        tasks += [ask(batcher, n) for n in (4, 5)]
        await settle()
        assert await outcomes(ask(batcher, 6)) == [Overloaded]
        with pytest.raises(Overloaded):
            batcher.check_admission(1)
        runner.release()
        assert await outcomes(*tasks) == [[n] for n in range(6)]
        assert await outcomes(ask(batcher, 7)) == [[7]]
        assert batcher.counts.refused == 2


@played
async def test_the_canary_runs_next_and_in_its_own_batch_though_the_queue_is_full(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, make_queue(token_budget=8, max_tokens=16)) as batcher:
        tasks = [ask(batcher, n) for n in range(6)]
        await settle()
        canary = asyncio.create_task(batcher.submit_exclusive([sequence(99)], timeout_seconds=9))
        await settle()
        runner.release()
        await asyncio.gather(canary, *tasks, return_exceptions=True)
    assert runner.batches[1] == [99]


@played
async def test_a_single_text_waits_for_about_one_batch_beside_bulk_requests(time: FakeTime) -> None:
    batch, queue = 0.064, make_queue(token_budget=64, max_tokens=100_000, tokens_per_second=1000)
    async with serving(FakeRunner(seconds_per_token=0.001), time, queue) as batcher:

        async def bulk() -> None:
            while True:
                await ask(batcher, *[1] * 2000)

        client = asyncio.create_task(bulk())
        for _ in range(50):
            await asyncio.sleep(0.37)
            began = time.now
            await ask(batcher, 2)
            assert time.now - began <= 2 * batch + 1e-9  # what is left of the run in progress, and its own
        client.cancel()


@played
async def test_reports_hold_size_time_and_longest_wait_of_a_batch(time: FakeTime) -> None:
    reports: list[BatchReport] = []
    async with serving(FakeRunner(seconds_per_token=0.5), time, report=reports.append) as batcher:
        tasks = [ask(batcher, 1)]
        for number in (2, 3):
            await asyncio.sleep(0.5)
            tasks.append(ask(batcher, number))
        await outcomes(*tasks)
    assert reports == [
        BatchReport(sequences=1, tokens=4, slots=4, waited_seconds=0.0, ran_seconds=2.0),
        BatchReport(sequences=2, tokens=8, slots=8, waited_seconds=1.5, ran_seconds=4.0),
    ]


@played
async def test_the_rate_is_measured_on_full_batches(time: FakeTime) -> None:
    async with serving(FakeRunner(seconds_per_token=0.1), time, make_queue(tokens_per_second=100.0)) as batcher:
        await ask(batcher, 1, length=2)
        assert batcher.queue.tokens_per_second == 100.0
        await asyncio.gather(*(ask(batcher, n) for n in range(100)))
        assert batcher.queue.tokens_per_second == pytest.approx(10.0, rel=0.01)


@played
async def test_a_small_batch_raises_a_rate_that_was_measured_too_low(time: FakeTime) -> None:
    """Else a request that the low rate refuses would never run, and the rate never change."""
    async with serving(FakeRunner(seconds_per_token=0.1), time, make_queue(tokens_per_second=0.5)) as batcher:
        await ask(batcher, 1, length=2)
        assert batcher.queue.tokens_per_second == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(("texts", "rate"), [(1, 10.0), (2, 20.0)], ids=["one on all cores", "two side by side"])
@played
async def test_the_rate_is_that_of_all_cores_together(time: FakeTime, texts: int, rate: float) -> None:
    runner, watchdog = FakeRunner(seconds_per_token=0.1, per_core=2), Watchdog(time.clock, side_by_side=True)
    async with serving(runner, time, make_queue(token_budget=100), watchdog, concurrency=PER_CORE) as batcher:
        for _ in range(40):
            await asyncio.gather(*(ask(batcher, n, length=80) for n in range(texts)))
        assert batcher.queue.tokens_per_second == pytest.approx(rate, rel=0.01)


@played
async def test_an_answered_request_is_freed_before_its_deadline(time: FakeTime) -> None:
    async with serving(FakeRunner(), time) as batcher:
        work = [sequence(1)]
        kept = weakref.ref(work[0].ids)
        await submit(batcher, work, timeout_seconds=60.0)
        del work
        await settle()
        gc.collect()
        assert kept() is None


# a request that ends in the same turn of the loop in which its task is cancelled is counted as it ended
NO_ROUND_TIME = 0.000_731_977


request_parameters = st.tuples(
    st.floats(0, 20),  # arrives
    st.lists(st.integers(1, 30), min_size=1, max_size=8),  # lengths
    st.floats(0.01, 30),  # deadline
    st.one_of(st.none(), st.floats(0, 10)),  # is cancelled
    st.sampled_from(["well", "well", "well", "poisoned", "not finite"]),
    st.integers(1, 9),  # sequences of a chunk
)


@given(
    st.lists(request_parameters, min_size=1, max_size=30),
    st.one_of(st.none(), st.floats(0, 30)),
    st.integers(10, 100),
    st.sampled_from(
        [Concurrency(1), Concurrency(2), Concurrency(3), Concurrency(2, per_core=True), Concurrency(3, per_core=True)]
    ),
)
def test_every_request_ends_exactly_once_and_the_counts_add_up(
    requests: Sequence[tuple[float, list[int], float, float | None, str, int]],
    closes: float | None,
    memory: int,
    concurrency: Concurrency,
) -> None:
    """Random arrivals, chunks, deadlines, cancellations, failures, memory: no request is lost or gets others' rows."""

    async def send(batcher: Batcher, number: int) -> str:
        arrives, lengths, deadline, cancelled, health, step = requests[number]
        await asyncio.sleep(arrives)
        work = [sequence(number, length) for length in lengths]
        task = asyncio.create_task(submit(batcher, work, step=step, timeout_seconds=deadline))
        if cancelled is not None:
            asyncio.get_running_loop().call_later(cancelled + NO_ROUND_TIME, task.cancel)
        try:
            assert numbers(await task) == [number] * len(lengths)
        except (ServiceError, asyncio.CancelledError) as error:
            assert adds_up(batcher)
            if isinstance(error, InferenceFailed):
                assert health != "well" or max(lengths) > memory
            return type(error).__name__
        assert health == "well"
        assert adds_up(batcher)
        return "answered"

    async def story(time: FakeTime) -> None:
        runner = FakeRunner(seconds_per_token=0.05, per_core=concurrency.max_in_flight if concurrency.per_core else 1)
        runner.max_tokens = memory
        runner.poisoned = {n for n, one in enumerate(requests) if one[4] == "poisoned"}
        runner.not_finite = {n for n, one in enumerate(requests) if one[4] == "not finite"}
        queue = make_queue(token_budget=40, max_tokens=300, max_wait_seconds=5, tokens_per_second=20)
        async with serving(runner, time, queue, concurrency=concurrency) as batcher:
            if closes is not None:
                asyncio.get_running_loop().call_later(closes, batcher.close, "the end")
            ends = await asyncio.gather(*(send(batcher, n) for n in range(len(requests))))
            counts = batcher.counts
            assert (counts.received, counts.answered) == (len(requests), ends.count("answered"))
            assert (counts.cancelled, counts.expired) == (ends.count("CancelledError"), ends.count("DeadlineExceeded"))

    play(story)
