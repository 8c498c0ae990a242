"""The scheduling policy: which requests are admitted, which sequences form the next batch, which deadlines have passed.

Plain synchronous code: knows no clock, no event loop and no model.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from service.errors import DeadlineTooShort, Overloaded, TooLarge, Unavailable
from service.scheduling.policy.estimate import WaitEstimate
from service.scheduling.policy.fair_order import FairOrder
from service.scheduling.policy.returns import ReturnSchedule
from service.scheduling.request import NextBatch, QueuedRequest

RECENT_BATCHES = 32  # for so many batches after a small request, bulk requests get half of each batch
MAX_SKIPPED = 32  # requests whose next sequence does not fit the batch that are skipped before it is dispatched
BULK_SHARE = 0.9  # of the queue's tokens for requests larger than a batch: the rest stays free for small ones
LATE_SHARE = 8  # requests of up to 1 / LATE_SHARE of the longest wait are served in time though smaller ones arrive
MIN_RETRY_SECONDS = 1.0
SUSPENDED_RETRY_SECONDS = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class RequestQueue:
    """Requests in the order of `FairOrder`, measured in tokens; admission by queued tokens and by estimated wait.

    `tokens` is always the sum of what the queued requests have not dispatched yet.
    """

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; for estimates of the wait
    closed: str = ""  # why no request is admitted any more
    suspended: str = ""  # why none but the exclusive ones is admitted at the moment
    tokens: int = 0
    _batches_since_small: int = 10**6
    _last_number: int = 0  # of the newest request
    _waiting: dict[int, QueuedRequest] = field(default_factory=dict)  # by number, so in the order of their arrival
    _exclusive: int = 0  # requests of those
    _order: list[tuple[float, int]] = field(
        default_factory=list
    )  # heap: finish and number of those, and of former ones
    _ageing: deque[int] = field(default_factory=deque)  # numbers of those, and of former ones, in order of arrival
    _fair: FairOrder = field(init=False)
    _estimate: WaitEstimate = field(init=False)
    _returns: ReturnSchedule = field(default_factory=ReturnSchedule)

    def __post_init__(self) -> None:
        self._fair = FairOrder(minimum_cost=self.token_budget)
        self._estimate = WaitEstimate(fair=self._fair, max_wait_seconds=self.max_wait_seconds)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def fills_a_batch(self) -> bool:
        """Whether the next batch would not grow by waiting."""
        return self.tokens >= self.token_budget

    @property
    def oldest(self) -> float | None:
        """When the request that has waited longest arrived."""
        return next((request.arrived for request in self._waiting.values()), None)

    @property
    def drain_seconds(self) -> float:
        """Estimated time until all that is queued has been dispatched: no request waits longer."""
        return self.tokens / self.tokens_per_second

    def wait_seconds(self, size: int, now: float) -> float:
        """Estimated wait of a new request of `size` tokens; larger ones that it comes before do not count."""
        return self._estimate.seconds(size, now, queued=self.tokens, rate=self.tokens_per_second)

    def check_admission(self, size: int, now: float, *, patience: float = math.inf) -> None:
        """Cheap, so that it can also be called with an estimate before anything is tokenized.

        Raises Unavailable when closed or suspended, TooLarge where `size` tokens could never fit, Overloaded where they
        do not fit now or would wait longer than `max_wait_seconds`, DeadlineTooShort where longer than `patience`.
        """
        if self.closed:
            raise Unavailable(self.closed)
        if self.suspended:
            raise suspension(self.suspended)
        capacity = self.max_tokens if size <= self.token_budget else int(self.max_tokens * BULK_SHARE)
        if size > capacity:
            limit = f"the queue takes at most {capacity} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"the request has {size} tokens; {limit}: send it in parts")
        wait = self.wait_seconds(size, now) if self._waiting else 0.0
        if self.tokens + size > capacity or wait > self.max_wait_seconds:
            earliest = self._seconds_until(size, now, self.max_wait_seconds, over=self.tokens + size - capacity)
            retry = self._returns.reserve(now, earliest, size / self.tokens_per_second)
            state = f"{self.tokens} tokens, about {wait:.1f} s before this request"
            raise Overloaded(f"the queue is full ({state}); retry in {retry:.0f} s", retry_after=retry)
        if wait > patience:
            retry = self._seconds_until(size, now, patience, over=0)
            message = f"the request would wait about {wait:.1f} s, and its deadline is in {patience:.1f} s"
            raise DeadlineTooShort(f"{message}: send a longer one, or retry in {retry:.0f} s", retry_after=retry)

    def admit(self, request: QueuedRequest) -> None:
        """Adds the whole request, or raises as `check_admission`."""
        size, now = request.size, request.arrived
        self.check_admission(size, now, patience=max(0.0, request.deadline - now))
        self._last_number = number = request.number = self._last_number + 1
        request.finish = self._fair.join(number, size)
        self._estimate.recent.add(max(size, self._fair.minimum_cost), size, now)
        if size * LATE_SHARE <= self.max_wait_seconds * self.tokens_per_second:
            self._ageing.append(number)
        self._enter(request)

    def admit_exclusive(self, request: QueuedRequest) -> None:
        """Bypasses the queue and all limits, in its own batch: the canary must not fail together with user requests."""
        if self.closed:
            raise Unavailable(self.closed)
        self._last_number = request.number = self._last_number + 1
        request.exclusive = True
        self._exclusive += 1
        self._enter(request)

    def next_batch(self, now: float, share: int | None = None) -> NextBatch:
        """Late requests, then the others in their order, until the token budget or a smaller `share` is used up.

        An exclusive request is first and alone.
        """
        batch = NextBatch(self.token_budget if share is None else min(share, self.token_budget))
        if self._exclusive:
            self._take(batch, self._waiting[self._order[0][1]], batch.room)
            return batch
        reserved = batch.room // 2
        if self._ageing:
            self._take_late(batch, now, reserved)
        self._take_in_order(batch, now, reserved)
        if batch.jobs:
            self._batches_since_small += 1
        return batch

    def _take_late(self, batch: NextBatch, now: float, reserved: int) -> None:
        """Requests that have waited for `max_wait_seconds`, first come, first served, up to half of the batch."""
        waiting, ageing = self._waiting, self._ageing
        while ageing and batch.room > reserved:
            request = waiting.get(ageing[0])
            if request is None:
                ageing.popleft()
            elif request.arrived + self.max_wait_seconds > now:
                return
            elif request.deadline <= now:
                self.remove(request)
                batch.expired.append(request)
            elif not self._take(batch, request, batch.room - reserved):
                return

    def _take_in_order(self, batch: NextBatch, now: float, reserved: int) -> None:
        """The first sequence is always dispatched, however long.

        A request whose next sequence does not fit the rest keeps its place, so that it cannot starve and shorter ones
        do not wait for it. For RECENT_BATCHES batches after a small request, a bulk request (larger than a batch) may
        use only half of each batch: the next small request neither waits for a full batch to end nor shares one.
        """
        skipped: list[tuple[float, int]] = []
        while self._order and batch.room > 0 and len(skipped) < MAX_SKIPPED:
            entry = heappop(self._order)
            request = self._waiting.get(entry[1])
            if request is None:
                continue
            if request.deadline <= now:
                self.remove(request)
                batch.expired.append(request)
                continue
            bulk = request.size > self.token_budget  # judged by original size: the tail of a bulk request is still bulk
            kept_free = reserved if bulk and self._batches_since_small < RECENT_BATCHES else 0
            taken = self._take(batch, request, batch.room - kept_free)
            if taken and not bulk:
                self._batches_since_small = 0
            if request.queued_tokens:
                skipped.append(entry)
        for entry in skipped:
            heappush(self._order, entry)

    def _take(self, batch: NextBatch, request: QueuedRequest, room: int) -> int:
        """Moves the next sequences of the request that fit into `room` to the batch; how many tokens they have."""
        queued = request.queued_tokens
        batch.jobs += request.dispatch(room, always_one=not batch.jobs)
        taken = queued - request.queued_tokens
        batch.room -= taken
        self.tokens -= taken
        if not request.queued_tokens:
            self._forget(request)
        if taken and self._waiting and not request.exclusive:
            self._fair.serve(request.finish, taken, request.size, last=not request.queued_tokens)
        return taken

    def remove(self, request: QueuedRequest) -> bool:
        """Drops what the request has not dispatched; False where it is not queued."""
        if request.number not in self._waiting:
            return False
        if not request.exclusive:
            self._fair.leave(request.number, request.finish, request.queued_tokens, request.size)
        self.tokens -= request.queued_tokens
        self._forget(request)
        return True

    def close(self, reason: str) -> list[QueuedRequest]:
        """Admits no request from now on; removes and returns the queued ones."""
        self.closed = reason
        requests = list(self._waiting.values())
        for request in requests:
            self.remove(request)
        return requests

    def shrink(self, tokens: int) -> None:
        """A batch of `tokens` did not fit the memory: from now on at most half of it."""
        self.token_budget = max(1, min(self.token_budget, tokens // 2))

    def _enter(self, request: QueuedRequest) -> None:
        self._waiting[request.number] = request
        heappush(self._order, (request.finish, request.number))
        self.tokens += request.queued_tokens

    def _forget(self, request: QueuedRequest) -> None:
        del self._waiting[request.number]
        self._exclusive -= request.exclusive
        if not self._waiting:
            self._order.clear()
            self._ageing.clear()
            self._fair.clear()
            self._returns.backlog_until = -math.inf  # those who were to come back by now have not: there is room

    def _seconds_until(self, size: int, now: float, patience: float, *, over: int) -> float:
        """How long, if no other request arrives, until one of `size` tokens is admitted that waits for `patience`.

        `over`: so many tokens too many are queued.
        """
        rate = self.tokens_per_second
        least = max(rate * MIN_RETRY_SECONDS, over) + self.token_budget
        return self._estimate.seconds_until(size, now, patience, queued=self.tokens, least=least, rate=rate)


def suspension(reason: str) -> Unavailable:
    return Unavailable(reason, code="suspended", retry_after=SUSPENDED_RETRY_SECONDS)
