"""The estimated wait of a new request, from what is queued and from what was admitted lately."""

import math
from dataclasses import dataclass, field

from service.scheduling.policy.fair_order import FairOrder

RECENT_SECONDS = 3.0  # time constant of the average
MAX_EXPONENT = 50.0  # the sums are decayed before their weights grow beyond e**50
MIN_SHARE = 0.05  # of the measured rate, that a large request counts with however many smaller ones arrive
LATE_MARGIN = 0.618  # of the longest wait: with what is late by then, it is the whole (x + x * x = 1)


@dataclass(slots=True, eq=False)
class RecentLoad:
    """The load of smaller requests that were admitted lately: an exponential average by the bit length of their cost.

    A larger request is served from what they leave.
    """

    _weighted: list[float] = field(default_factory=lambda: [0.0] * 64)  # tokens by bit length, weighted by time
    _origin: float = 0.0  # seconds; a weight is e**((time - origin) / RECENT_SECONDS)

    def add(self, cost: int, tokens: int, now: float) -> None:
        exponent = (now - self._origin) / RECENT_SECONDS
        if exponent > MAX_EXPONENT:
            decay = math.exp(-exponent)
            self._weighted = [tokens * decay for tokens in self._weighted]
            self._origin, exponent = now, 0.0
        self._weighted[cost.bit_length()] += tokens * math.exp(exponent)

    def smaller(self, cost: int, now: float) -> float:
        """Tokens a second of requests whose cost has fewer bits."""
        decay = math.exp((self._origin - now) / RECENT_SECONDS)
        return sum(self._weighted[: cost.bit_length()]) * decay / RECENT_SECONDS


@dataclass(slots=True, kw_only=True, eq=False)
class WaitEstimate:
    """Sizes and `queued` in tokens, `rate` in tokens a second, `now` in seconds of the queue's clock."""

    fair: FairOrder
    max_wait_seconds: float
    recent: RecentLoad = field(default_factory=RecentLoad)

    def surely_shorter(self, seconds: float, *, queued: int, rate: float) -> bool:
        """Whether any request waits for `seconds` at most, whatever else arrives: all that is queued before it, at the
        lowest rate that `seconds()` counts with."""
        return queued <= seconds * rate * MIN_SHARE

    def seconds(self, size: int, now: float, *, queued: int, rate: float) -> float:
        """The wait of a new request of `size`, if smaller ones go on to arrive as they did lately.

        Of the larger ones behind it, so many count as are late by then, if they arrived evenly.
        """
        ahead, rate = self.fair.ahead(size), self._left(size, now, rate)
        late = min(ahead, queued - ahead) * min(1.0, ahead / rate / self.max_wait_seconds)
        return (ahead + late) / rate

    def seconds_until(self, size: int, now: float, patience: float, *, queued: int, least: float, rate: float) -> float:
        """How long, if no other request arrives, until one of `size` would wait for `patience` at most.

        At least until `least` tokens are served. Rather too long than too short.
        """
        share = 1.0 if self.fair.ahead(size) == queued else LATE_MARGIN
        wanted = int(patience * share * self._left(size, now, rate))
        return self.fair.tokens_until(size, wanted, least) / rate

    def _left(self, size: int, now: float, rate: float) -> float:
        """Tokens a second that smaller requests leave to one of `size`."""
        return max(rate * MIN_SHARE, rate - self.recent.smaller(self.fair.cost(size), now))
