"""Whether a new request would wait too long: its estimated wait, and when it may return if it is refused."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import DeadlineTooShort, Overloaded
from .order import FairOrder

WAITS_ALONE = 3  # a request may wait so many times the time that it takes alone
SURE_SHARE = 0.5  # of the longest wait: while all that is queued drains within it, no request is refused for its wait
RECENT_SECONDS = 3.0  # time constant of the average of what was admitted
MAX_EXPONENT = 50.0  # the sums are decayed before their weights grow beyond e**50
CLASSES = 4  # of costs, between powers of two
MIN_RETRY_SECONDS = 1.0
# larger requests may age past ours while we wait: x of the longest wait, so that x + x * x = 1 still meets it
AGED_SHARE = 0.618
GOLDEN_RATIO = 0.618  # its multiples are spread evenly
Arrivals = list[tuple[float, float]]  # tokens a second, and for how many seconds
RETURN_REQUESTS = 12  # of the same size: if such requests fill the queue, a drain admits only one
RETURN_DRAINS = 1.75  # with the batches in progress, the last of the refused returns within twice the time


@dataclass(slots=True)
class RecentLoad:
    """The tokens that were admitted lately, by the cost of their requests: exponential averages."""

    _classes: dict[int, tuple[float, float]] = field(default_factory=dict)  # tokens, tokens * cost; weighted by time
    _origin: float = 0.0  # seconds; a weight is e**((time - origin) / RECENT_SECONDS)

    def add(self, cost: int, tokens: int, now: float) -> None:
        exponent = (now - self._origin) / RECENT_SECONDS
        if exponent > MAX_EXPONENT:
            decay = math.exp(-exponent)
            self._classes = {key: (load * decay, costs * decay) for key, (load, costs) in self._classes.items()}
            self._origin, exponent = now, 0.0
        weighted = tokens * math.exp(exponent)
        load, costs = self._classes.get(key := int(CLASSES * math.log2(cost)), (0.0, 0.0))
        self._classes[key] = load + weighted, costs + weighted * cost

    def smaller(self, cost: int, now: float) -> list[tuple[float, float]]:
        """Mean cost and tokens a second of each class whose mean is below `cost`, the largest first."""
        decay = math.exp((self._origin - now) / RECENT_SECONDS) / RECENT_SECONDS
        means = [(costs / load, load * decay) for load, costs in self._classes.values() if load]
        return sorted([one for one in means if one[0] < cost], reverse=True)


class QueueLoad(NamedTuple):
    """What the queue holds when a request arrives."""

    now: float  # seconds of the queue's clock
    queued: int  # cost of all that is to be dispatched, as expected
    held: int  # tokens of the models themselves that the requests hold
    capacity: int  # the most that may be held with the request
    over: int  # cost of what would be held beyond that
    budget: int  # cost of a batch
    rate: float  # cost a second, measured


@dataclass(slots=True, kw_only=True, eq=False)
class WaitLimit:
    """Sizes in tokens, times in seconds."""

    fair: FairOrder
    max_wait_seconds: float
    recent: RecentLoad = field(default_factory=RecentLoad)
    _returns_until: float = -math.inf  # seconds of the clock: by then the device has served all that were refused
    _refused: int = 0

    def is_surely_met(self, size: int, queued: int, patience: float, rate: float) -> bool:
        """Whether all that is queued, with the request, drains within SURE_SHARE of its longest wait: no request is
        refused for its wait then, while an estimate counts what may arrive later."""
        return queued + size <= SURE_SHARE * rate * min(patience, self._allowed(size, rate))

    def _allowed(self, size: int, rate: float) -> float:
        """A request may wait for `max_wait_seconds`, or for WAITS_ALONE times the time that it takes alone."""
        return max(self.max_wait_seconds, WAITS_ALONE * size / rate)

    def check(self, size: int, patience: float, latest: Callable[[], float], load: QueueLoad) -> None:
        """Raises as RequestQueue.check_admission for the size and the wait of a request that `is_surely_met` does not
        admit.

        `latest` is the longest wait of a request of this size, since the queue serves late requests first: no error
        names a longer wait.
        """
        over, allowed = load.over, self._allowed(size, load.rate)
        longest = min(patience, allowed)
        ahead, arriving = self.fair.ahead(size), self._arriving(size, load)
        least = max(MIN_RETRY_SECONDS * load.rate, over)
        wait = self._drain_seconds(ahead, arriving, load)
        if over <= 0 and wait <= longest:
            return
        if over <= 0 and wait <= allowed:
            retry = math.ceil(self._seconds_until(size, longest, least, ahead, arriving, load))
            message = f"the request would wait about {wait:.1f} s, and its deadline is in {patience:.1f} s"
            raise DeadlineTooShort(f"{message}: send a longer one, or retry in {retry} s", retry_after=retry)
        room = self._seconds_until(size, allowed, least, ahead, arriving, load)
        retry = self._return_seconds(size, room, load)
        limit = f"the longest wait is {allowed:.4g} s (BERT_MAX_WAIT_SECONDS)"
        if over > 0:
            limit = f"the queue holds {load.held} of at most {load.capacity} tokens (BERT_MAX_WAITING_TOKENS)"
        message = f"the request would wait about {min(wait, latest()):.1f} s, {limit}; retry in {retry} s"
        raise Overloaded(message, retry_after=retry)

    def _drain_seconds(self, ahead: int, arriving: Arrivals, load: QueueLoad) -> float:
        """The wait of a request behind `ahead` tokens, if smaller requests keep `arriving` at their recent rate.

        Larger requests behind it go first once they are late; their number is estimated as if they arrived evenly.
        """
        if not ahead:
            return 0.0
        late = min(ahead, load.queued - ahead) * min(1.0, ahead / load.rate / self.max_wait_seconds)
        tokens, left = ahead + late, load.rate - sum([rate for rate, _ in arriving])
        for rate, ends in arriving:
            if tokens <= left * ends:
                break
            tokens, left = tokens + rate * ends, left + rate
        return tokens / left

    def _arriving(self, size: int, load: QueueLoad) -> Arrivals:
        """How long each class of smaller requests comes before a new request, sorted by that time.

        If n requests share the device equally, a smaller request comes first only if it arrives before the new request
        has been served the difference of their costs: within n * difference / rate.
        """
        cost, sharing = self.fair.cost(size), 1 + self.fair.unfinished
        smaller = self.recent.smaller(cost, load.now)
        return [(rate, sharing * (cost - mean) / load.rate) for mean, rate in smaller]

    def _seconds_until(
        self, size: int, longest: float, least: float, ahead: int, arriving: Arrivals, load: QueueLoad
    ) -> float:
        """Seconds until a request of `size` is admitted if no other arrives, after `least` tokens or more.

        That is when it would wait for `longest` at most, or when all that is queued drains soon enough.
        """
        expected = sum([rate * min(longest, ends) for rate, ends in arriving])
        share = 1.0 if ahead == load.queued else AGED_SHARE
        wanted = int(max(0.0, longest * load.rate - expected) * share)
        drained = load.queued + size - SURE_SHARE * longest * load.rate
        tokens = min(self.fair.tokens_until(size, wanted, least), max(least, drained))
        return (tokens + load.budget) / load.rate

    def _return_seconds(self, size: int, room: float, load: QueueLoad) -> int:
        """When a refused request may return, in whole seconds: after `room` seconds, in its turn among the refused.

        Each of these gets the next free time of the device, up to RETURN_DRAINS times the time in which the queue
        drains, or the time of RETURN_REQUESTS such requests if that is longer; more requests are spread over this time.
        """
        self._refused += 1
        longest = max(RETURN_DRAINS * load.queued, RETURN_REQUESTS * size) / load.rate
        before = max(0.0, self._returns_until - load.now)
        if room + before > longest:
            before = max(0.0, longest - room) * (self._refused * GOLDEN_RATIO % 1.0)
        else:
            self._returns_until = load.now + before + size / load.rate
        return math.ceil(room + before)
