"""Records when each run began and calls back if a run does not end in time; counts requests and batches."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .request import SequenceJob

BUSY_SECONDS = 15.0  # time constant of the average: about the interval of a scrape
INTERVALS = 8  # in BERT_RUN_TIMEOUT_SECONDS; an interval that takes more than twice its time does not count
Clock = Callable[[], float]


@dataclass(slots=True, kw_only=True)  # made for each batch: a frozen record takes four times as long
class BatchReport:
    """A successful run."""

    sequences: int
    tokens: int
    slots: int  # attention slots, filled or not
    waited_seconds: float  # the longest wait in the batch
    ran_seconds: float
    canary: bool = False  # a self-check, in a batch of its own
    jobs: Sequence[SequenceJob] = field(default=(), compare=False, repr=False)


@dataclass(slots=True)
class RequestCounts:
    """Requests by outcome. At any moment received = all the others + those still in the batcher."""

    received: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def in_flight(self) -> int:
        """Those that wait or run."""
        return self.received - self.answered - self.failed - self.refused - self.cancelled - self.expired

    def refuse(self) -> None:
        self.received += 1
        self.refused += 1


@dataclass(slots=True)
class RunFailures:
    failed_runs: int = 0  # raised an exception, or gave no finite answer
    out_of_memory: int = 0  # of those


@dataclass(slots=True)
class BusyShare:
    """The share of the device that runs have used lately: an exponential average over BUSY_SECONDS."""

    sessions: int = 1  # runs side by side; a run alone on all cores counts as all of them
    _running: int = 0  # sessions
    _average: float = 0.0  # at `_since`
    _since: float = 0.0  # seconds

    def change(self, sessions: int, now: float) -> None:
        """So many more sessions run from `now` on."""
        self._average, self._since = self.at(now), now
        self._running += sessions

    def at(self, now: float) -> float:
        busy = min(1.0, self._running / self.sessions)
        return busy + (self._average - busy) * math.exp((self._since - now) / BUSY_SECONDS)


@dataclass(slots=True, eq=False)
class WatchedRun:
    sessions: int  # that it uses
    began: float = math.nan  # seconds; NaN while it waits for the device
    intervals: int = 0  # that have passed since then


@dataclass(slots=True, eq=False)
class Watchdog:
    """Counts intervals of its own, so that a stopped process or a suspended machine does not count."""

    clock: Clock = time.monotonic
    run_timeout_seconds: float = 30.0
    on_timeout: Callable[[], None] = lambda: None  # called when a run has lasted that long
    side_by_side: bool = False
    busy: BusyShare = field(default_factory=BusyShare)
    _runs: list[WatchedRun] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None  # of the next interval, while anything runs or ran lately

    def begin(self, *, all_cores: bool) -> WatchedRun:
        run = WatchedRun(self.busy.sessions if all_cores else 1)
        self._runs.append(run)
        if self.side_by_side or len(self._runs) == 1:
            self._start(run)
        return run

    def end(self, run: WatchedRun) -> None:
        if math.isnan(run.began):  # it has ended before the run that has the device: its time is not known
            run.began = self.clock()
        else:
            self.busy.change(-run.sessions, self.clock())
        self._runs.remove(run)
        if self._runs and math.isnan(self._runs[0].began):
            self._start(self._runs[0])

    def _start(self, run: WatchedRun) -> None:
        run.began = self.clock()
        self.busy.change(run.sessions, run.began)
        if self._timer is None:
            self._wait_for_interval()

    def _wait_for_interval(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self.run_timeout_seconds / INTERVALS
        self._timer = loop.call_later(seconds, self._on_interval, loop.time() + 2 * seconds)

    def _on_interval(self, latest: float) -> None:
        """A run counts an interval that it was there for as a whole: it ends the process after eight to nine."""
        self._timer = None
        counts = asyncio.get_running_loop().time() <= latest
        for run in self._runs:
            run.intervals += counts and not math.isnan(run.began)
            if run.intervals > INTERVALS:
                self.on_timeout()
                return
        if self._runs:
            self._wait_for_interval()
