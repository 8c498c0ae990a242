"""Requests that are cancelled or expire, runs that hang, the end of the batcher; on a fake runner and clock."""

import asyncio
from collections.abc import Sequence

import pytest

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import DeadlineExceeded, Unavailable
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.watchdog import INTERVALS, Watchdog
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played, settle
from tests.service.scheduling.serving import PER_CORE, ask, outcomes, serving


@played
async def test_a_cancelled_request_is_left_out_of_the_batch(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time) as batcher:
        first = ask(batcher, 1)
        await settle()
        cancelled, stays = ask(batcher, 2), ask(batcher, 3)
        await settle()
        cancelled.cancel()
        await settle()
        assert batcher.queue.tokens == 4
        runner.release()
        assert await outcomes(first, cancelled, stays) == [[1], asyncio.CancelledError, [3]]
    assert runner.ran == {1: 1, 3: 1}


@played
async def test_a_request_cancelled_during_a_failing_run_is_not_run_again(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    runner.poisoned = {1}
    async with serving(runner, time) as batcher:
        poisoned, cancelled = ask(batcher, 1), ask(batcher, 2)
        await settle()
        cancelled.cancel()
        await settle()
        runner.release()
        await outcomes(poisoned, cancelled)
    assert runner.batches == [[1, 2], [1]]


@played
async def test_an_expired_request_is_dropped_before_the_run_and_counted(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=1.0)
    async with serving(runner, time, make_queue(token_budget=4)) as batcher:
        ends = await outcomes(ask(batcher, 1), ask(batcher, 2, timeout=3.0), ask(batcher, 3))
        assert ends == [[1], DeadlineExceeded, [3]]
        assert batcher.counts.expired == 1
    assert runner.batches == [[1], [3]]


@played
async def test_an_expired_request_is_answered_at_its_deadline_and_not_when_the_run_ends(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=100.0)
    async with serving(runner, time) as batcher:
        running = ask(batcher, 1)
        await settle()
        late = ask(batcher, 2, timeout=3.0)
        with pytest.raises(DeadlineExceeded, match="0 of 1 inputs had been dispatched"):
            await late
        assert time.now == 3.0
        await running


@played
async def test_a_request_whose_deadline_passes_during_its_run_is_answered(time: FakeTime) -> None:
    async with serving(FakeRunner(seconds_per_token=1.0), time) as batcher:
        assert await outcomes(ask(batcher, 1, timeout=2.0)) == [[1]]


@played
async def test_close_answers_running_and_prepared_requests_and_rejects_the_others(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time, concurrency=Concurrency(2)) as batcher:
        tasks = [ask(batcher, n) for n in range(5)]
        await settle()
        batcher.close("shutting down")
        runner.release()
        assert await outcomes(*tasks) == [[0], [1], [2], [3], Unavailable]


@played
async def test_close_rejects_queued_and_new_requests_and_the_run_in_progress_still_counts(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    async with serving(runner, time) as batcher:
        tasks = [ask(batcher, n) for n in range(5)]
        await settle()
        batcher.close("shutting down")
        tasks.append(ask(batcher, 9))
        await settle()
        runner.release()
        assert await outcomes(*tasks) == [[0], [1], Unavailable, Unavailable, Unavailable, Unavailable]
        assert batcher.counts.refused == 1


@played
async def test_a_hanging_run_times_out_and_its_requests_can_be_failed(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    timeouts: list[float] = []
    async with serving(runner, time, watchdog=Watchdog(time.clock, 7.0, lambda: timeouts.append(time.now))) as batcher:
        tasks = [ask(batcher, n) for n in range(5)]
        await asyncio.sleep(9)
        assert [7.0 <= at <= 7.0 * (1 + 1 / INTERVALS) for at in timeouts] == [True]
        batcher.fail_all("stuck")
        assert await outcomes(*tasks) == [Unavailable] * 5
        runner.release()


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


@played
async def test_a_run_that_hangs_after_a_pause_of_the_process_times_out_later(time: FakeTime) -> None:
    runner = FakeRunner(held=True)
    timeouts: list[float] = []
    watchdog = Watchdog(time.clock, 4.0, lambda: timeouts.append(time.now))
    async with serving(runner, time, watchdog=watchdog) as batcher:
        asking = ask(batcher, 1)
        await asyncio.sleep(1.25)
        time.now += 6.0
        await asyncio.sleep(5)
        assert len(timeouts) == 1
        assert 1.25 + 6.0 + 3.0 <= timeouts[0] <= 1.25 + 6.0 + 3.5  # two intervals of 0.5 s before the pause
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
