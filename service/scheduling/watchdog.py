"""Records when each run began, and calls back where one does not end in time.

The time of a run is counted in intervals of the event loop. An interval that ends late does not count: the process was
stopped or its machine suspended, and the end of the run may wait for a turn of the loop. A loop that hangs is not
noticed here (`workers/heartbeat`).

Several runs may be in flight: side by side, or one running and the others prepared. A prepared run begins when the one
before it ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.scheduling.stats import BusyShare

INTERVALS = 8  # in BERT_RUN_TIMEOUT_SECONDS; one that takes more than twice its time does not count
Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class WatchedRun:
    began: float = 0.0  # seconds; valid once `timer` is set
    timer: asyncio.TimerHandle | None = None
    sessions: int = 0  # that it uses since `began`
    intervals: int = 0  # that have passed


@dataclass(slots=True, eq=False)
class Watchdog:
    clock: Clock = time.monotonic
    run_timeout_seconds: float = 30.0
    on_timeout: Callable[[], None] = lambda: None  # called when a run has lasted that long
    side_by_side: bool = False
    busy: BusyShare = field(default_factory=BusyShare)
    _runs: list[WatchedRun] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{len(self._runs)} runs in flight" + (f", one since {self._runs[0].began:.3f}" if self._runs else "")

    def begin(self, *, all_cores: bool) -> WatchedRun:
        run = WatchedRun(sessions=self.busy.sessions if all_cores else 1)
        self._runs.append(run)
        if self.side_by_side or len(self._runs) == 1:
            self._start(run)
        return run

    def end(self, run: WatchedRun) -> None:
        if run.timer is not None:
            run.timer.cancel()
            self.busy.change(-run.sessions, self.clock())
        self._runs.remove(run)
        if self._runs and self._runs[0].timer is None:
            self._start(self._runs[0])

    def _start(self, run: WatchedRun) -> None:
        run.began = self.clock()
        self.busy.change(run.sessions, run.began)
        self._count_next_interval(run)

    def _count_next_interval(self, run: WatchedRun) -> None:
        loop, seconds = asyncio.get_running_loop(), self.run_timeout_seconds / INTERVALS
        run.timer = loop.call_later(seconds, self._on_interval, run, loop.time() + 2 * seconds)

    def _on_interval(self, run: WatchedRun, latest: float) -> None:
        run.intervals += asyncio.get_running_loop().time() <= latest
        if run.intervals < INTERVALS:
            self._count_next_interval(run)
        else:
            self.on_timeout()
