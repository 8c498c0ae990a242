"""When each run began, and an alarm where one does not end.

Several may be under way at once: side by side, or one runs and the others are prepared. A prepared run begins when the one before it ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class WatchedRun:
    """One run; `began` says something once it has begun."""

    began: float = 0.0
    alarm: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Watchdog:
    clock: Clock = time.monotonic
    run_timeout_seconds: float = 30.0
    on_stuck: Callable[[], None] = lambda: None  # called when a run has lasted that long
    side_by_side: bool = False
    _runs: list[WatchedRun] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.in_flight} runs under way" + (f", one since {self._runs[0].began:.3f}" if self._runs else "")

    @property
    def in_flight(self) -> int:
        return len(self._runs)

    def begin(self) -> WatchedRun:
        run = WatchedRun()
        self._runs.append(run)
        if self.side_by_side or len(self._runs) == 1:
            self._start(run)
        return run

    def end(self, run: WatchedRun) -> None:
        if run.alarm is not None:
            run.alarm.cancel()
        self._runs.remove(run)
        if self._runs and self._runs[0].alarm is None:
            self._start(self._runs[0])

    def _start(self, run: WatchedRun) -> None:
        run.began = self.clock()
        run.alarm = asyncio.get_running_loop().call_later(self.run_timeout_seconds, self.on_stuck)
