"""Records when each run began, and calls back where one does not end in time.

Several runs may be in flight: side by side, or one running and the others prepared. A prepared run begins when the one
before it ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.scheduling.stats import BusyShare

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class WatchedRun:
    began: float = 0.0  # seconds; valid once `timer` is set
    timer: asyncio.TimerHandle | None = None
    sessions: int = 0  # that it uses since `began`


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
        run.timer = asyncio.get_running_loop().call_later(self.run_timeout_seconds, self.on_timeout)
