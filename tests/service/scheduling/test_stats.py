"""How busy the device is said to be."""

import asyncio
import math

import pytest

from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.watchdog import BUSY_SECONDS, BusyShare, Watchdog
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, sequence, settle
from tests.service.scheduling.serving import submit


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


@pytest.mark.parametrize(("texts", "share"), [(1, 1.0), (2, 1.0)], ids=["one on all cores", "two side by side"])
def test_a_run_on_all_cores_uses_all_sessions(texts: int, share: float) -> None:
    async def story(time: FakeTime) -> None:
        concurrency = Concurrency(2, per_core=True)
        watchdog = Watchdog(time.clock, side_by_side=True, busy=BusyShare(concurrency.side_by_side))
        runner = FakeRunner(seconds_per_token=1.0, per_core=2)
        queue = make_queue(token_budget=100)
        batcher = Batcher(run=runner.run, queue=queue, clock=time.clock, watchdog=watchdog, concurrency=concurrency)
        serve = asyncio.create_task(batcher.serve())
        work = [submit(batcher, [sequence(n, 80)], timeout_seconds=1000.0) for n in range(texts)]
        await asyncio.gather(*work)
        assert watchdog.busy.at(time.now) == pytest.approx(share, abs=0.01)
        await asyncio.sleep(10 * BUSY_SECONDS)
        assert watchdog.busy.at(time.now) < 0.001
        batcher.close("closed")
        await serve
        await settle()

    play(story)
