"""When the service is ready, and when its process should end."""

import asyncio

import numpy as np
import pytest

from packbert.service.engine.canary import BATCHES_BETWEEN_CHECKS, Canary, Health
from packbert.service.errors import Unavailable
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import BatchReport, Watchdog
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, opened, played, sequence, settle, submit

CANARY = 7  # the number of its sequence, which is also what the fake model answers


def health(**calibration: object) -> Health:
    return Health(tolerance=0.1, loading=False, **calibration)  # type: ignore[arg-type]


def test_it_is_ready_when_the_canary_is_right_and_nothing_else_is_wrong() -> None:
    assert health().reason == ""
    assert Health(tolerance=0.1).reason == "loading"
    assert health(draining=True).reason == "draining"
    for wrong in (0.2, float("nan")):
        (one := health()).canary_answered(wrong)
        assert one.reason == f"the canary's vector is wrong by {wrong:g}"
        one.canary_answered(0.05)
        assert one.reason == ""
    (stuck := health(fault="stuck")).canary_answered(0)
    assert stuck.reason == "stuck"


def test_three_failed_canaries_in_a_row_end_the_process() -> None:
    one = health()
    assert [one.canary_failed("x"), one.canary_failed("x")] == [False, False]
    one.canary_answered(0)
    assert [one.canary_failed("x"), one.canary_failed("x"), one.canary_failed("x")] == [False, False, True]


def test_a_run_without_a_vector_keeps_the_verdict_of_the_last() -> None:
    one, verdicts = health(), list[bool]()
    for run in (
        lambda: one.canary_failed("x"),
        lambda: one.canary_answered(0.2),
        lambda: one.canary_failed("x"),
        lambda: one.canary_answered(0),
        lambda: one.canary_failed("x", not_finite=True),
    ):
        run()
        verdicts.append(one.wrong)
    assert verdicts == [False, True, True, False, True]


class Engine:
    """A real batcher and canary around a fake model, with `interval_seconds` of 5."""

    def __init__(self, time: FakeTime, runner: FakeRunner) -> None:
        self.runner, self.dead, self.batches = runner, list[str](), 0
        self.batcher = Batcher(run=runner.run, queue=make_queue(), clock=time.clock, watchdog=Watchdog(time.clock))
        self.canary = Canary(
            batcher=self.batcher,
            health=health(),
            tokens=sequence(CANARY),
            vector=np.array(float(CANARY)),
            interval_seconds=5,
            timeout_seconds=30,
            on_dead=self.dead.append,
        )
        self.batcher.report = self.count

    async def open(self) -> None:
        self.running = [asyncio.create_task(self.batcher.dispatcher.serve()), asyncio.create_task(self.canary.run())]

    def count(self, _: BatchReport) -> None:
        """As the engine does."""
        self.batches += 1
        if self.batches % BATCHES_BETWEEN_CHECKS == 0:
            self.canary.due.set()

    async def close(self) -> None:
        assert adds_up(self.batcher)
        self.running[1].cancel()
        self.batcher.close("closed")
        await asyncio.wait(self.running)


@pytest.mark.parametrize("pause", [0.5, 3.0, 4.9, 7.0])
@played
async def test_the_canary_is_due_by_time_whatever_is_answered_meanwhile(time: FakeTime, pause: float) -> None:
    async with opened(Engine(time, FakeRunner())) as engine:
        engine.batcher.report = lambda _: None  # without the canaries that are due by the number of batches
        while time.now < 59:
            await submit(engine.batcher, [sequence(1)], timeout_seconds=10)
            await asyncio.sleep(pause)
        await settle()
        assert engine.runner.ran[CANARY] == time.now // 5


@played
async def test_it_is_not_ready_while_no_batch_begins(time: FakeTime) -> None:
    async with opened(Engine(time, FakeRunner())) as engine:
        engine.running[0].cancel()
        await asyncio.sleep(5 + 29)
        assert engine.canary.health.reason == ""
        await asyncio.sleep(2)
        assert engine.canary.health.reason.startswith(
            "the canary failed: the deadline passed after 30.000 s in the queue"
        )
        engine.running[0] = asyncio.create_task(engine.batcher.dispatcher.serve())
        await asyncio.sleep(5)
        await settle()
        assert engine.canary.health.reason == ""


@played
async def test_requests_get_503_while_the_canary_is_known_to_be_wrong(time: FakeTime) -> None:
    async with opened(Engine(time, FakeRunner())) as engine:
        engine.canary.vector = np.array(CANARY + 1.0)
        await engine.canary.check()
        with pytest.raises(Unavailable, match=r"wrong answers.*vector is wrong by 1\).*another replica") as caught:
            await submit(engine.batcher, [sequence(1)], timeout_seconds=10)
        assert (caught.value.code, caught.value.retry_after) == ("suspended", 5.0)
        assert not engine.runner.ran[1]
        engine.canary.vector = np.array(float(CANARY))
        await asyncio.sleep(5)
        await settle()
        (row,) = (await submit(engine.batcher, [sequence(1)], timeout_seconds=10)).rows
        assert row["cls"].tolist() == [1]


@played
async def test_requests_get_503_when_the_canary_turns_out_wrong(time: FakeTime) -> None:
    runner = FakeRunner(seconds_per_token=1)
    async with opened(Engine(time, runner)) as engine:
        engine.canary.vector = np.array(CANARY + 1.0)
        asked = [asyncio.create_task(submit(engine.batcher, [sequence(1)] * 9, timeout_seconds=999)) for _ in range(3)]
        for one in asked:
            with pytest.raises(Unavailable, match="wrong answers"):
                await one
        assert runner.ran[CANARY] == 1
        assert time.now < 3 * 9 * 4  # before all of them could run


@played
async def test_a_canary_not_finite_withholds_answers_and_ends_the_process_after_three(time: FakeTime) -> None:
    runner = FakeRunner(not_finite={CANARY})
    async with opened(Engine(time, runner)) as engine:
        await engine.canary.check()
        with pytest.raises(Unavailable, match="NaN"):
            await submit(engine.batcher, [sequence(1)], timeout_seconds=10)
        await asyncio.sleep(10)
        await settle()
        assert len(engine.dead) == 1
