"""What the batcher counts: batches that were run, requests by outcome, failures, how busy the device is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.scheduling.request import SequenceJob

RATE_SECONDS, MAX_RATE_WEIGHT = 5.0, 0.2  # time constant of the measured rate; of the newest batch in it
BUSY_SECONDS = 15.0  # time constant of the average: about the interval of a scrape


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One successful run."""

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

    def refuse(self, requests: int) -> None:
        self.received += requests
        self.refused += requests


def average_rate(rate: float, *, tokens: int, seconds: float) -> float:
    """Tokens a second, of all runs with `rate` and a newest one: the harmonic mean; that of the rates is too high."""
    weight = min(MAX_RATE_WEIGHT, seconds / RATE_SECONDS)
    return 1 / ((1 - weight) / rate + weight * seconds / tokens)


@dataclass(slots=True)
class RunFailures:
    failed_runs: int = 0  # raised an exception, or gave no finite answer
    out_of_memory: int = 0  # of those


@dataclass(slots=True)
class BusyShare:
    """The share of the device that runs have used lately: an exponential average over BUSY_SECONDS."""

    sessions: int = 1  # runs side by side; one alone on all cores counts as all of them
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
