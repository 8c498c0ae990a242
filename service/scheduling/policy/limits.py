"""Whether a request fits the queue and waits short enough; with what a refused one is answered."""

from dataclasses import dataclass, field

from service.errors import DeadlineTooShort, Overloaded, TooLarge
from service.scheduling.policy.estimate import WaitEstimate
from service.scheduling.policy.returns import ReturnSchedule

MIN_RETRY_SECONDS = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Limits:
    """Sizes, `queued`, `capacity` and `budget` (of a batch) in tokens, `rate` in tokens a second, times in seconds."""

    max_wait_seconds: float
    estimate: WaitEstimate
    returns: ReturnSchedule = field(default_factory=ReturnSchedule)

    def check(
        self, size: int, now: float, patience: float, *, queued: int, capacity: int, budget: int, rate: float
    ) -> None:
        """Raises as RequestQueue.check_admission for the size and the wait."""
        if size > capacity:
            limit = f"the queue takes at most {capacity} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"the request has {size} tokens; {limit}: send it in parts")
        over = queued + size - capacity
        if over <= 0 and self.estimate.surely_shorter(min(patience, self.max_wait_seconds), queued=queued, rate=rate):
            return
        wait = self.estimate.seconds(size, now, queued=queued, rate=rate) if queued else 0.0
        if over <= 0 and wait <= min(patience, self.max_wait_seconds):
            return
        full = over > 0 or wait > self.max_wait_seconds
        least = max(rate * MIN_RETRY_SECONDS, over if full else 0) + budget
        longest = self.max_wait_seconds if full else patience
        retry = self.estimate.seconds_until(size, now, longest, queued=queued, least=least, rate=rate)
        if full:
            retry = self.returns.reserve(now, retry, size / rate)
            state = f"{queued} tokens, about {wait:.1f} s before this request"
            raise Overloaded(f"the queue is full ({state}); retry in {retry:.0f} s", retry_after=retry)
        message = f"the request would wait about {wait:.1f} s, and its deadline is in {patience:.1f} s"
        raise DeadlineTooShort(f"{message}: send a longer one, or retry in {retry:.0f} s", retry_after=retry)
