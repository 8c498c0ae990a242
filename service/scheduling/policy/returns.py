"""When refused requests are to come back. Knows neither the queue nor whether a client does come back."""

import math
from dataclasses import dataclass

MAX_BACKLOG_SECONDS = 300.0  # clients that never come back must not send away those that do for longer
USABLE_SHARE = 0.9  # of the measured rate: returns that are a little faster than the device find the queue full again
GOLDEN_RATIO = 0.618  # its multiples are spread evenly


@dataclass(slots=True, eq=False)
class ReturnSchedule:
    """A time for each refused request, as fast as the device can serve them.

    The virtual scheduling algorithm of ITU-T I.371 (generic cell rate algorithm): refused work is a virtual backlog
    that expires as its time passes.
    """

    backlog_until: float = -math.inf  # seconds: by then all that were refused have come back
    _reserved: int = 0

    def reserve(self, now: float, earliest_seconds: float, work_seconds: float) -> float:
        """Seconds from `now` to the return of a request that takes `work_seconds`; at least `earliest_seconds`.

        Beyond MAX_BACKLOG_SECONDS of backlog, returns are spread evenly over that time.
        """
        self._reserved += 1
        wait = max(self.backlog_until - now, earliest_seconds)
        if wait - earliest_seconds > MAX_BACKLOG_SECONDS:
            return earliest_seconds + MAX_BACKLOG_SECONDS * (self._reserved * GOLDEN_RATIO % 1.0)
        self.backlog_until = now + wait + work_seconds / USABLE_SHARE
        return wait
