"""When the run that has the device began, and an alarm where it does not end.

Several may be under way at once: one runs, the others are prepared. A run begins when it is handed over, or when the one before it ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Watchdog:
    clock: Clock = time.monotonic
    stuck_seconds: float = 30.0
    on_stuck: Callable[[], None] = lambda: None  # called when a run has lasted that long
    under_way: int = 0
    running_since: float = 0.0  # says something only while one is under way
    _alarm: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"{self.under_way} runs under way" + (f", one since {self.running_since:.3f}" if self.under_way else "")

    def begin(self) -> None:
        self.under_way += 1
        if self.under_way == 1:
            self._start()

    def end(self) -> float:
        """When the run that ends now had begun."""
        began = self.running_since
        self.under_way -= 1
        if self._alarm is not None:
            self._alarm.cancel()
        if self.under_way:
            self._start()
        return began

    def _start(self) -> None:
        self.running_since = self.clock()
        self._alarm = asyncio.get_running_loop().call_later(self.stuck_seconds, self.on_stuck)
