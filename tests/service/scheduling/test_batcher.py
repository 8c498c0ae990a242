"""The batcher on a fake runner and clock: every request ends exactly once, and gets its own rows or its error."""

import asyncio
import gc
import math
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    NotFinite,
    OutOfMemory,
    ServiceError,
    TooMuchForDeadline,
    Unavailable,
)
from packbert.service.scheduling.batcher import MAX_FAILURES_TO_SPLIT, Batcher
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.request import Chunk
from packbert.service.scheduling.watchdog import (
    BUSY_SECONDS,
    INTERVALS,
    BatchReport,
    BusyShare,
    RequestCounts,
    Watchdog,
)
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, play, played, sequence, settle, submit
from tests.service.scheduling.serving import PER_CORE, ask, numbers, outcomes, serving


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
async def test_requests_that_end_in_the_queue_never_run(time: FakeTime) -> None:
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
async def test_queued_tokens_are_shared_and_each_core_is_free_by_itself(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=0.1, per_core=2)
    async with serving(runner, time, make_queue(token_budget=100), concurrency=PER_CORE) as batcher:
        tasks = [ask(batcher, n, length=64 if n == 1 else 80) for n in (1, 2, 3)]
        assert await outcomes(*tasks) == [[1], [2], [3]]
        assert runner.batches == [[1], [2], [3]]
        assert runner.all_cores == [False, False, False]
        assert time.now == pytest.approx(6.4 + 8.0)  # the first core is free after 6.4 s, whatever the other does
        answer = await ask(batcher, 1, 2, 3, length=80)
        assert [answer.request.queue_seconds, answer.request.forward_seconds] == pytest.approx([0.0, 16.0])


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
        [Concurrency(1), Concurrency(2), Concurrency(3), *(Concurrency(n, per_core=True) for n in (2, 3, 16))]
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
        poisoned, not_finite = (
            {n for n, one in enumerate(requests) if one[4] == how} for how in ("poisoned", "not finite")
        )
        per_core = concurrency.max_in_flight if concurrency.per_core else 1
        runner = FakeRunner(0.05, per_core=per_core, max_tokens=memory, poisoned=poisoned, not_finite=not_finite)
        queue = make_queue(token_budget=40, max_tokens=300, max_wait_seconds=5, tokens_per_second=20)
        async with serving(runner, time, queue, concurrency=concurrency) as batcher:
            if closes is not None:
                asyncio.get_running_loop().call_later(closes, batcher.close, "the end")
            ends = await asyncio.gather(*(send(batcher, n) for n in range(len(requests))))
            counts = batcher.counts
            assert (counts.received, counts.answered) == (len(requests), ends.count("answered"))
            assert (counts.cancelled, counts.expired) == (ends.count("CancelledError"), ends.count("DeadlineExceeded"))

    play(story)


@played
async def test_a_request_cancelled_during_a_failing_run_is_not_run_again(time: FakeTime) -> None:
    runner = FakeRunner(held=True, poisoned={1})
    async with serving(runner, time) as batcher:
        poisoned, cancelled = ask(batcher, 1), ask(batcher, 2)
        await settle()
        cancelled.cancel()
        await settle()
        runner.release()
        await outcomes(poisoned, cancelled)
    assert runner.batches == [[1, 2], [1]]


@played
async def test_an_expired_request_is_answered_at_its_deadline(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=100.0)
    async with serving(runner, time) as batcher:
        running = ask(batcher, 1, timeout=2.0)
        await settle()
        late = ask(batcher, 2, timeout=3.0)
        with pytest.raises(DeadlineExceeded, match="0 of 1 inputs had been dispatched"):
            await late
        assert time.now == 3.0
        assert await outcomes(running) == [[1]]  # its own has passed during its run


@played
async def test_close_answers_running_and_prepared_requests_and_rejects_the_others(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, concurrency=Concurrency(2)) as batcher:
        tasks = [ask(batcher, n) for n in range(5)]
        await settle()
        batcher.close("shutting down")
        runner.release()
        assert await outcomes(*tasks) == [[0], [1], [2], [3], Unavailable]


@pytest.mark.parametrize("paused_at", [1.0, 2.9])
@played
async def test_a_pause_of_the_process_does_not_count_towards_a_runs_timeout(time: FakeTime, paused_at: float) -> None:
    """The run takes 3 of 4 s, and it ends while the process is stopped or soon after that."""
    timeouts: list[float] = []
    watchdog = Watchdog(time.clock, 4.0, lambda: timeouts.append(time.now))
    for pause in (6.0, 1.5):
        async with serving(FakeRunner(seconds_per_token=0.75), time, watchdog=watchdog) as batcher:
            asking = ask(batcher, 1)
            await asyncio.sleep(paused_at)
            time.now += pause
            assert await outcomes(asking) == [[1]]
    assert timeouts == []


@pytest.mark.parametrize("pause", [1.0, 6.0])  # more than two intervals of 0.5 s are not counted
@played
async def test_a_run_that_hangs_after_a_pause_times_out_later(time: FakeTime, pause: float) -> None:
    runner = FakeRunner(held=True)
    timeouts: list[float] = []
    watchdog = Watchdog(time.clock, 4.0, lambda: timeouts.append(time.now))
    async with serving(runner, time, watchdog=watchdog) as batcher:
        asking = ask(batcher, 1)
        await asyncio.sleep(1.25)
        time.now += pause
        await asyncio.sleep(5)
        assert len(timeouts) == 1
        assert 1.25 + pause + 3.0 < timeouts[0] <= 1.25 + pause + 3.5  # two intervals before the pause
        batcher.fail_all("stuck")
        assert await outcomes(asking) == [Unavailable]
        runner.release()


class Hanging(FakeRunner):
    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:
        if sequences[0].ids[0] == 1:
            await asyncio.sleep(100)
        return await super().run(sequences, all_cores=all_cores)


@played
async def test_a_hanging_core_times_out_while_the_other_goes_on(time: FakeTime) -> None:
    runner, timeouts = Hanging(seconds_per_token=0.01, per_core=2), list[float]()
    watchdog = Watchdog(time.clock, 5.0, lambda: timeouts.append(time.now), side_by_side=True)
    async with serving(runner, time, make_queue(token_budget=64), watchdog, concurrency=PER_CORE) as batcher:
        hanging = ask(batcher, 1, length=64)
        others = [ask(batcher, n, length=64) for n in range(2, 12)]
        assert await outcomes(*others) == [[n] for n in range(2, 12)]
        await asyncio.sleep(3)
        assert 5.0 <= timeouts[0] <= 5.0 + 5.0 / INTERVALS
        batcher.fail_all("stuck")
        assert await outcomes(hanging) == [Unavailable]


@pytest.mark.parametrize("depth", [1, 2])
@played
async def test_a_failing_batch_fails_only_the_culprit(time: FakeTime, depth: int) -> None:
    runner = FakeRunner(poisoned={5})
    async with serving(runner, time, make_queue(token_budget=64), concurrency=Concurrency(depth)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [
            [n] if n != 5 else InferenceFailed for n in range(16)
        ]
        assert await outcomes(ask(batcher, 1)) == [[1]]
        assert batcher.failures.failed_runs == 5  # of 16, 8, 4, 2 and 1 sequences
    assert len(runner.batches) == 10


@pytest.mark.parametrize(("failures_before", "index"), [(0, 2), (MAX_FAILURES_TO_SPLIT, None)])
@played
async def test_the_error_names_the_failing_input_unless_the_batch_is_not_split(
    time: FakeTime, failures_before: int, index: int | None
) -> None:
    async with serving(FakeRunner(poisoned={5}), time, make_queue(token_budget=64)) as batcher:
        batcher.failures_in_a_row = failures_before
        with pytest.raises(InferenceFailed) as failure:
            await submit(batcher, [sequence(n) for n in (3, 4, 5, 6)], timeout_seconds=9)
    assert failure.value.index == index


@played
async def test_a_non_finite_row_fails_its_request_without_another_run(time: FakeTime) -> None:
    runner = FakeRunner(not_finite={5})
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(8))) == [[n] if n != 5 else NotFinite for n in range(8)]
    assert len(runner.batches) == 1


@played
async def test_sequences_made_non_finite_by_a_neighbour_run_again_without_it(time: FakeTime) -> None:
    class Spreading(FakeRunner):
        """The culprit 5 shares its attention row with 4 and 6."""

        async def run(self, sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:
            self.not_finite = {4, 5, 6} if 5 in {int(tokens.ids[0]) for tokens in sequences} else set()
            return await super().run(sequences, all_cores=all_cores)

    runner = Spreading()
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(8))) == [[n] if n != 5 else NotFinite for n in range(8)]
    assert set(runner.batches[1]) | set(runner.batches[2]) <= {4, 5, 6}


@played
async def test_too_few_rows_fail_the_batch_and_the_next_request_is_answered(time: FakeTime) -> None:
    runner = FakeRunner(drops_last_row=True)
    async with serving(runner, time) as batcher:
        assert await outcomes(ask(batcher, 1), ask(batcher, 2)) == [InferenceFailed, InferenceFailed]
        runner.drops_last_row = False
        assert await outcomes(ask(batcher, 3)) == [[3]]


@played
async def test_splitting_stops_when_every_run_fails(time: FakeTime) -> None:
    runner = FakeRunner(always_fails=True)
    async with serving(runner, time, make_queue(token_budget=4000, max_tokens=8000)) as batcher:
        assert set(map(str, await outcomes(*(ask(batcher, n) for n in range(900))))) == {str(InferenceFailed)}
        first = len(runner.batches)
        assert first <= 2 * 16
        await outcomes(*(ask(batcher, n) for n in range(900)))
        assert len(runner.batches) == first + 1
        runner.always_fails = False
        assert await outcomes(ask(batcher, 3)) == [[3]]
        assert batcher.failures_in_a_row == 0


@played
async def test_out_of_memory_halves_the_batch_and_lowers_the_budget(time: FakeTime) -> None:
    runner = FakeRunner(max_tokens=20)
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [[n] for n in range(16)]
        assert batcher.queue.token_budget == 16
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [[n] for n in range(16)]
        assert batcher.failures.out_of_memory == 3
    assert max(runner.lengths[-4:]) <= 16


@played
async def test_a_sequence_too_large_for_the_memory_fails_and_the_budget_stays(time: FakeTime) -> None:
    runner = FakeRunner(max_tokens=20)
    async with serving(runner, time, make_queue(token_budget=18)) as batcher:
        assert await outcomes(ask(batcher, 1, length=30)) == [OutOfMemory]
        assert batcher.queue.token_budget == 18


def chunk_of(*numbers: int, left: int = 0) -> Chunk[Tokens]:
    return Chunk([sequence(n) for n in numbers], left=left)


@played
async def test_a_request_beyond_its_deadline_is_refused_with_a_size_that_fits(time: FakeTime) -> None:
    async with serving(FakeRunner(), time) as batcher:
        with pytest.raises(TooMuchForDeadline) as caught:
            batcher.admit(800, 80, timeout_seconds=4.0)
        assert caught.value.code == "too_much_for_deadline"
        assert "about 800 tokens, which take about 8.0 s here, and its deadline is in 4.0 s" in caught.value.message
        assert "send at most 36 inputs like these at once, or a longer x-request-timeout-ms" in caught.value.message
        assert batcher.counts == RequestCounts(received=1, refused=1)
        batcher.leave(batcher.admit(360, 36, timeout_seconds=4.0))


@played
async def test_what_ends_a_request_is_raised_at_its_next_chunk(time: FakeTime) -> None:
    runner = FakeRunner(poisoned={4})
    async with serving(runner, time) as batcher:
        failing, late, closed = (batcher.admit(24, 6, timeout_seconds=seconds) for seconds in (100.0, 5.0, 100.0))
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


def test_the_busy_share_approaches_what_runs_use_and_fades() -> None:
    busy = BusyShare(sessions=4)
    busy.change(1, 100.0)
    assert busy.at(100.0) == 0.0
    assert busy.at(100.0 + BUSY_SECONDS) == pytest.approx(0.25 * (1 - math.exp(-1)))
    assert busy.at(1000.0) == pytest.approx(0.25)
    busy.change(3, 1000.0)
    busy.change(-4, 2000.0)
    assert busy.at(2000.0) == pytest.approx(1.0)
    assert busy.at(2000.0 + BUSY_SECONDS) == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("texts", [1, 2], ids=["one on all cores", "two side by side"])
@played
async def test_a_run_on_all_cores_uses_all_sessions(time: FakeTime, texts: int) -> None:
    watchdog = Watchdog(time.clock, side_by_side=True, busy=BusyShare(PER_CORE.side_by_side))
    runner = FakeRunner(seconds_per_token=1.0, per_core=2)
    async with serving(runner, time, make_queue(token_budget=100), watchdog, concurrency=PER_CORE) as batcher:
        await outcomes(*(ask(batcher, n, length=80) for n in range(texts)))
        assert watchdog.busy.at(time.now) == pytest.approx(1.0, abs=0.01)
        await asyncio.sleep(10 * BUSY_SECONDS)
        assert watchdog.busy.at(time.now) < 0.001
