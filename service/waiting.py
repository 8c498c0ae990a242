"""The line: who is admitted, who leaves next, whose time is over. Plain synchronous code without a clock, a loop or a model."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from model_export.batch import Row, Tokens
from service.errors import Overloaded, TooLarge

LOOK_PAST = 32  # sequences that do not fit the rest of a batch and are looked past before it leaves


@dataclass(slots=True, eq=False)
class Caller:
    """A request in the line. Its sequences leave one at a time, in order; `rows` fills up in any order."""

    work: Sequence[Tokens]
    arrived: float  # seconds
    deadline: float
    left: int = 0  # sequences that have gone into a batch
    answered: int = 0
    rows: list[Row | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [None] * len(self.work)

    @property
    def waiting_tokens(self) -> int:
        return sum(map(len, self.work[self.left :]))


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence of one caller, on its way through a run."""

    caller: Caller
    index: int

    @property
    def tokens(self) -> Tokens:
        return self.caller.work[self.index]


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Callers in turn. `tokens` is always the sum over the callers in the ring of what has not left yet."""

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; estimates the wait
    tokens: int = 0
    _ring: deque[Caller] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def oldest(self) -> float | None:
        """When the caller that waits longest arrived."""
        return min((caller.arrived for caller in self._ring), default=None)

    def admit(self, caller: Caller) -> None:
        """Takes the whole request into the line or raises: TooLarge where it could never fit, Overloaded where it does not fit now."""
        size = caller.waiting_tokens
        if size > self.max_tokens:
            raise TooLarge(f"the request has {size} tokens; the line holds at most {self.max_tokens}: send it in parts")
        over = self.tokens + size - self.max_tokens
        wait = self.tokens / self.tokens_per_second
        if over > 0 or wait > self.max_wait_seconds:
            retry = max(over / self.tokens_per_second, wait - self.max_wait_seconds, 1.0)
            raise Overloaded(f"{self.tokens} tokens are waiting, about {wait:.1f} s of work; try again in {retry:.0f} s", retry_after=retry)
        self.tokens += size
        self._ring.append(caller)

    def take(self) -> list[Job]:
        """The next batch: one sequence of each caller in turn until the budget is full. Empty when nobody waits.

        The first in turn always leaves, however long; one that does not fit the rest keeps its turn for the next batch, so that
        nothing starves and nothing short waits behind it.
        """
        jobs: list[Job] = []
        passed: list[Caller] = []
        room = self.token_budget
        while self._ring and room > 0 and len(passed) < LOOK_PAST:
            caller = self._ring.popleft()
            length = len(caller.work[caller.left])
            if jobs and length > room:
                passed.append(caller)
                continue
            jobs.append(Job(caller, caller.left))
            caller.left += 1
            room -= length
            self.tokens -= length
            if caller.left < len(caller.work):
                self._ring.append(caller)
        self._ring.extendleft(reversed(passed))
        return jobs

    def remove(self, caller: Caller) -> bool:
        """Drops what a caller still has in the line; False where nothing was left of it."""
        if caller not in self._ring:
            return False
        self._ring.remove(caller)
        self.tokens -= caller.waiting_tokens
        return True

    def expired(self, now: float) -> list[Caller]:
        """Removes and returns the callers whose deadline has passed."""
        late = [caller for caller in self._ring if caller.deadline <= now]
        for caller in late:
            self.remove(caller)
        return late

    def clear(self) -> list[Caller]:
        """Removes and returns everyone."""
        everyone = list(self._ring)
        self._ring.clear()
        self.tokens = 0
        return everyone
