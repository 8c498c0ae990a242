"""The scheduling policy: which requests are admitted, which sequences form the next batch, which deadlines have passed.

Plain synchronous code without a clock: the time is an argument.
"""

import math
from collections import deque
from collections.abc import Reversible, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import Unavailable
from packbert.service.scheduling.order import FairOrder
from packbert.service.scheduling.request import WHOLE_BUDGET, NextBatch, Request, Selection
from packbert.service.scheduling.wait import QueueLoad, WaitLimit

RECENT_BATCHES = 32  # for so many batches after a small request, bulk requests get half of each batch
MAX_SKIPPED = 32  # requests whose next sequence does not fit the batch that are skipped before it is dispatched
BULK_SHARE = 0.9  # of the queue's tokens for requests larger than a batch: the rest stays free for small ones
AGEING_SHARE = 8  # only requests that alone take less than an eighth of BERT_MAX_WAIT_SECONDS move forward when late


@dataclass(slots=True, kw_only=True, eq=False)
class RequestQueue:
    """Requests in the order of `FairOrder`, measured in tokens; admission by queued tokens and by estimated wait.

    `tokens` is the sum of what they have not dispatched. One that misses sequences stays until all are dispatched.
    """

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; for estimates of the wait
    closed: str = ""  # why no request is admitted any more
    tokens: int = 0
    reserved: int = 0  # expected of the sequences that admitted requests still miss
    _batches_since_small: int = 10**6
    last_number: int = 0  # of the newest request
    _waiting: dict[int, Request] = field(default_factory=dict)  # by number, so in the order of their arrival
    _exclusive: dict[int, Request] = field(default_factory=dict)  # those of them that are
    _order: list[tuple[float, int]] = field(default_factory=list)  # heap: finish and number of those with sequences
    _ageing: deque[int] = field(default_factory=deque)  # numbers of those, and of former ones, in order of arrival
    _fair: FairOrder = field(init=False)
    _limit: WaitLimit = field(init=False)

    def __post_init__(self) -> None:
        self._fair = FairOrder(minimum_cost=self.token_budget)
        self._limit = WaitLimit(fair=self._fair, max_wait_seconds=self.max_wait_seconds)

    @property
    def waiting_requests(self) -> int:
        """Without the exclusive ones."""
        return len(self._waiting) - len(self._exclusive)

    @property
    def waiting(self) -> Reversible[Request]:
        """The queued requests, in the order of their arrival."""
        return self._waiting.values()

    @property
    def fills_a_batch(self) -> bool:
        """Whether the next batch would not grow by waiting."""
        return self.tokens >= self.token_budget

    @property
    def oldest(self) -> float | None:
        """When the request that has waited longest arrived."""
        return next((request.arrived for request in self._waiting.values()), None)

    @property
    def expected(self) -> int:
        """The tokens that are queued and those that are reserved."""
        return self.tokens + self.reserved

    @property
    def drain_seconds(self) -> float:
        """Estimated time until all that is queued or reserved has been dispatched: no request waits longer."""
        return self.expected / self.tokens_per_second

    def check_admission(self, size: int, now: float, *, patience: float = math.inf) -> None:
        """Cheap, also with an estimate before anything is tokenized.

        Raises Unavailable when closed, TooLarge where `size` tokens never fit, Overloaded where they do
        not fit now or would wait longer than `max_wait_seconds`, DeadlineTooShort where longer than `patience`.
        """
        if self.closed:
            raise Unavailable(self.closed)
        load = QueueLoad(now, self.expected, self.capacity(size), self.token_budget, self.tokens_per_second)
        self._limit.check(size, patience, lambda: self._latest(size, now), load)

    def capacity(self, size: int) -> int:
        """The most tokens that may be queued when a request of `size` tokens has been admitted."""
        return self.max_tokens if size <= self.token_budget else int(self.max_tokens * BULK_SHARE)

    def admit(self, request: Request) -> None:
        """Adds the request, or raises as `check_admission`. It keeps its place while it waits for sequences.

        An exclusive one bypasses the queue and all limits: the canary must not fail together with user requests.
        """
        if not request.exclusive:
            patience = max(0.0, request.deadline - request.arrived)
            self.check_admission(request.size, request.arrived, patience=patience)
        elif self.closed:
            raise Unavailable(self.closed)
        self.last_number = request.number = self.last_number + 1
        if request.exclusive:
            self._exclusive[request.number] = request
        else:
            self._join_order(request)
        self._waiting[request.number] = request
        self._count(request, 1)
        self._put_in_order(request)

    def _join_order(self, request: Request) -> None:
        size = request.size
        request.virtual_finish = self._fair.join(request.number, size)
        self._limit.recent.add(self._fair.cost(size), size, request.arrived)
        if self._ages(size + request.later):
            self._ageing.append(request.number)

    def _ages(self, size: int) -> bool:
        """Whether a request of `size` moves forward when it is late."""
        return size * AGEING_SHARE <= self.max_wait_seconds * self.tokens_per_second

    def _latest(self, size: int, now: float) -> float:
        """About the longest wait of a new request of `size`, in seconds: that of the oldest one that is served late."""
        if not self._ages(size):
            return math.inf
        while self._ageing and self._ageing[0] not in self._waiting:
            self._ageing.popleft()
        oldest = self._waiting[self._ageing[0]].arrived if self._ageing else now
        return max(self.max_wait_seconds, now - oldest)

    def extend(self, request: Request, work: Sequence[Tokens], reserved: int) -> None:
        """Adds sequences that a request missed, as Request.append. Its place stays."""
        before = request.unserved
        self._count(request, -1)
        request.extend(work, reserved)
        self._count(request, 1)
        self._fair.correct(request.number, request.virtual_finish, request.unserved - before)
        self._put_in_order(request)

    def next_batch(self, now: float, selection: Selection = WHOLE_BUDGET) -> NextBatch:
        """Late requests, then the others in their order, until the token budget or a smaller `selection` is used up.

        An exclusive request is first and alone. The first sequence of a batch is taken however long it is, so a batch
        is empty only where nothing is queued or all that is queued has expired.
        """
        batch = NextBatch(min(selection.tokens or self.token_budget, self.token_budget))
        if (exclusive := next(iter(self._exclusive.values()), None)) is not None:
            self._take(batch, exclusive, batch.tokens_left)
            return batch
        half = batch.tokens_left // 2
        if (first := selection.first) is not None and not self._expire(batch, first, now):
            self._take(batch, first, 0 if selection.all_cores else batch.tokens_left)
            if selection.all_cores:
                return batch
        if self._ageing:
            self._take_late(batch, now, half)
        self._take_in_order(batch, now, half)
        if batch.jobs:
            self._batches_since_small += 1
        return batch

    def _take_late(self, batch: NextBatch, now: float, half: int) -> None:
        """Requests that have waited for `max_wait_seconds`, first come, first served, up to half of the batch."""
        waiting, ageing = self._waiting, self._ageing
        idle: list[int] = []  # requests whose next sequences are missing
        while ageing and batch.tokens_left > half:
            request = waiting.get(ageing[0])
            if request is None:
                ageing.popleft()
            elif request.arrived + self.max_wait_seconds > now:
                break
            elif self._expire(batch, request, now):
                continue
            elif not request.queued_tokens:
                idle.append(ageing.popleft())
            elif not self._take(batch, request, batch.tokens_left - half):
                break
        ageing.extendleft(reversed(idle))

    def _take_in_order(self, batch: NextBatch, now: float, half: int) -> None:
        """A request whose next sequence does not fit the rest keeps its place: it cannot starve, shorter ones pass it.

        For RECENT_BATCHES batches after a small request, a bulk request (larger than a batch) may use only half of each
        batch: the next small request neither waits for a full batch to end nor shares one.
        """
        skipped: list[Request] = []
        while self._order and batch.tokens_left > 0 and len(skipped) < MAX_SKIPPED:
            if (request := self._waiting.get(heappop(self._order)[1])) is None:
                continue
            request.in_order = False
            if self._expire(batch, request, now):
                continue
            bulk = request.size > self.token_budget  # judged by original size: the tail of a bulk request is still bulk
            kept_free = half if bulk and self._batches_since_small < RECENT_BATCHES else 0
            taken = self._take(batch, request, batch.tokens_left - kept_free)
            if taken and not bulk:
                self._batches_since_small = 0
            if request.queued_tokens:
                skipped.append(request)
        for request in skipped:
            self._put_in_order(request)

    def _expire(self, batch: NextBatch, request: Request, now: float) -> bool:
        """Removes the request where its deadline has passed."""
        if request.deadline > now:
            return False
        self.remove(request)
        batch.expired.append(request)
        return True

    def _take(self, batch: NextBatch, request: Request, max_tokens: int) -> int:
        """Moves the next sequences that fit into `max_tokens` to the batch; how many tokens they have.

        None are moved where the batch has those of another model.
        """
        if batch.model is None:
            batch.model = request.model
            if request.model.budget < batch.tokens_left:
                batch.tokens_left = int(request.model.budget)
                max_tokens = min(max_tokens, batch.tokens_left)
        elif batch.model is not request.model:
            return 0
        queued = request.queued_tokens
        batch.jobs += request.dispatch(max_tokens, always_one=not batch.jobs)
        taken = queued - request.queued_tokens
        batch.tokens_left -= taken
        self.tokens -= taken
        if request.dispatched_all:
            self._forget(request)
        if taken and self._waiting and not request.exclusive:
            self._fair.serve(request.virtual_finish, taken, request.size, last=request.dispatched_all)
        if request.later:
            self._refill(request)
        return taken

    def _refill(self, request: Request) -> None:
        """Keeps what a request in parts has left free for its later tokens, which are behind what has arrived."""
        unserved = request.unserved
        tokens = min(request.later, request.room - unserved)
        if tokens > 0:
            request.later -= tokens
            request.reserved += tokens
            self.reserved += tokens
            request.virtual_finish = self._fair.prolong(request.number, request.virtual_finish, unserved, tokens)

    def remove(self, request: Request) -> None:
        """Drops what the request has not dispatched. Does nothing where it is not queued."""
        if request.number not in self._waiting:
            return
        if not request.exclusive:
            self._fair.leave(request.number, request.virtual_finish, request.unserved, request.size)
        self._count(request, -1)
        self._forget(request)

    def close(self, reason: str) -> list[Request]:
        """Admits no request from now on; removes and returns the queued ones."""
        self.closed, requests = reason, list(self._waiting.values())
        for request in requests:
            self.remove(request)
        return requests

    def shrink(self, tokens: int) -> None:
        """A batch of `tokens` did not fit the memory: from now on at most half of it."""
        self.token_budget = max(1, min(self.token_budget, tokens // 2))

    def _put_in_order(self, request: Request) -> None:
        if request.queued_tokens and not request.in_order and not request.exclusive:
            request.in_order = True
            heappush(self._order, (request.virtual_finish, request.number))

    def _count(self, request: Request, sign: int) -> None:
        self.tokens += sign * request.queued_tokens
        self.reserved += sign * request.reserved

    def _forget(self, request: Request) -> None:
        del self._waiting[request.number]
        self._exclusive.pop(request.number, None)
        if not self._waiting:
            self._order.clear()
            self._ageing.clear()
            self._fair.clear()
