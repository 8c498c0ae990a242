"""The canary: a sequence whose vector the artifact knows, run through the real queue; and the health of the engine.

`Health` decides from facts, without a clock, a loop or a model; `Canary` runs the checks.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Tokens

from ..errors import DeadlineExceeded, InferenceFailed, NotFinite, ServiceError
from ..scheduling.batcher import Batcher

MAX_FAILURES = 3  # canaries in a row whose runs failed: every run fails, and a new process is the cure
SELF_CHECK_SECONDS = 5.0  # between two canaries
BATCHES_BETWEEN_CHECKS = 100  # a busy engine runs the canary after so many batches
WRONG = "the model gives wrong answers, which are withheld until its self-check is right again"
log = logging.getLogger("service")


@dataclass(slots=True, kw_only=True)
class Health:
    """Whether a request would be answered now.

    A wrong canary makes the engine not ready, and its answers are withheld, until a canary is right; a fault is final.
    """

    tolerance: float  # largest absolute difference of the canary's vector
    loading: bool = True
    draining: bool = False
    fault: str = ""
    canary: str = ""  # what was wrong with the last canary
    wrong: bool = False  # the last vector of a canary was wrong, and so is any answer
    _consecutive_failures: int = 0

    @property
    def reason(self) -> str:
        """Why a request would not be answered now, empty if it would."""
        if self.fault:
            return self.fault
        if self.loading:
            return "loading"
        return "draining" if self.draining else self.canary

    def canary_answered(self, difference: float) -> None:
        """Takes the largest absolute difference to the known vector; NaN counts as wrong."""
        self._consecutive_failures, self.wrong = 0, not difference <= self.tolerance
        self.canary = f"the canary's vector is wrong by {difference:.3g}" if self.wrong else ""

    def canary_failed(self, why: str, *, not_finite: bool = False) -> bool:
        """Whether so many canaries failed in a row that the process should end. A vector that is not finite is wrong;
        if a run gave none, the last vector stands."""
        self._consecutive_failures += 1
        self.wrong |= not_finite
        self.canary = f"the canary failed: {why}"
        return self._consecutive_failures >= MAX_FAILURES


@dataclass(slots=True, eq=False, kw_only=True)
class Canary:
    """Runs a check `interval_seconds` after the last check, busy or idle, or after BATCHES_BETWEEN_CHECKS batches.

    While the vector is known to be wrong, all requests but the canary's own are answered with 503.
    """

    batcher: Batcher
    health: Health
    tokens: Tokens
    vector: NDArray[np.float64]  # [hidden]: what the exporter's reference gave for `tokens`
    interval_seconds: float
    timeout_seconds: float
    on_dead: Callable[[str], None]  # called with the reason when every run fails
    is_wanted: Callable[[], bool] = lambda: True  # False: the model is out of memory, and right when it was there
    due: asyncio.Event = field(default_factory=asyncio.Event)  # set after BATCHES_BETWEEN_CHECKS batches

    async def run(self) -> None:
        """Runs checks until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.due.wait(), self.interval_seconds)
            self.due.clear()
            if self.is_wanted():
                await self.check()

    async def check(self) -> None:
        """One canary, past the queue's limits and in a batch of its own."""
        before = self.health.canary
        try:
            (row,) = await self.batcher.submit_exclusive([self.tokens], timeout_seconds=self.timeout_seconds)
        except InferenceFailed as error:
            if self.health.canary_failed(error.message, not_finite=isinstance(error, NotFinite)):
                self.on_dead(f"every run fails: {error.message}")
        except DeadlineExceeded as error:  # no batch has begun for so long
            self.health.canary = f"the canary failed: {error.message}"
        except ServiceError:
            return  # the queue is closed
        else:
            self.health.canary_answered(float(np.abs(row["cls"][0] - self.vector).max()))
        why = f"{WRONG} ({self.health.canary}): send the request to another replica"
        self.batcher.suspend(why if self.health.wrong else "")
        if self.health.canary != before:
            log.error("not ready: %s", self.health.canary) if self.health.canary else log.info("ready again")
