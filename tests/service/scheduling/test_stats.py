"""How busy the device is said to be."""

import asyncio
import math

import pytest

from packbert.service.scheduling.watchdog import BUSY_SECONDS, BusyShare, Watchdog
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played
from tests.service.scheduling.serving import PER_CORE, ask, outcomes, serving


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
