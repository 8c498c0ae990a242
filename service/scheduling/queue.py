"""The scheduling policy: which requests are admitted, which sequences form the next batch, which deadlines have passed.

Plain synchronous code without a clock: the time is an argument.
"""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ..errors import Unavailable
from .order import FairOrder
from .request import WHOLE_BUDGET, Chunk, NextBatch, QueuedModel, Request, Selection
from .wait import QueueLoad, WaitLimit

RECENT_BATCHES = 32  # for so many batches after a small request, bulk requests get half of each batch
MAX_SKIPPED = 32  # requests whose next sequence does not fit the batch that are skipped before it is dispatched
BULK_SHARE = 0.9  # of the queue's tokens for requests larger than a batch: the rest stays free for small requests
AGEING_SHARE = 8  # only requests that alone take less than an eighth of BERT_MAX_WAIT_SECONDS move forward when late


@dataclass(slots=True, kw_only=True, eq=False)
class RequestQueue:
    """Requests in the order of `FairOrder`, measured in tokens of the first model; admission by the tokens that they
    hold and by the estimated wait.

    A request keeps its place until all of its chunks are dispatched: the next one may not be there yet.
    """

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; for estimates of the wait
    closed: str = ""  # why no request is admitted any more
    tokens: int = 0  # of the sequences that can be dispatched
    held: int = 0  # tokens of the models themselves that requests may have here
    _batches_since_small: int = 10**6
    last_number: int = 0  # of the newest request
    last_arrival: float = -math.inf  # likewise, in seconds
    _waiting: dict[int, Request] = field(default_factory=dict)  # by number, so in the order of their arrival
    _exclusive: dict[int, Request] = field(default_factory=dict)  # the exclusive requests among them
    _order: list[tuple[float, int]] = field(default_factory=list)  # heap: finish and number of those with sequences
    _ageing: deque[tuple[float, int]] = field(default_factory=deque)  # arrival and number, also of former requests
    _fair: FairOrder = field(init=False)
    _limit: WaitLimit = field(init=False)

    def __post_init__(self) -> None:
        self._fair = FairOrder(minimum_cost=self.token_budget)
        self._limit = WaitLimit(fair=self._fair, max_wait_seconds=self.max_wait_seconds)

    @property
    def waiting_requests(self) -> int:
        """Without exclusive requests."""
        return len(self._waiting) - len(self._exclusive)

    @property
    def waiting(self) -> Collection[Request]:
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
        """Cost of all that is to be dispatched, also of the chunks that are expected."""
        return self._fair.unserved

    @property
    def drain_seconds(self) -> float:
        """Estimated time until all that is expected has been dispatched."""
        return self.expected / self.tokens_per_second

    def check_admission(self, model: QueuedModel, tokens: int, now: float, *, patience: float = math.inf) -> None:
        """Raises Unavailable when closed, Overloaded if so many tokens do not fit now or would wait too long,
        DeadlineTooShort if they would wait longer than `patience`."""
        if self.closed:
            raise Unavailable(self.closed)
        if not self.held:
            return
        size, queued, rate = model.cost(tokens), self._fair.unserved, self.tokens_per_second
        capacity = self.capacity(size)
        over = round(model.scale * (self.held + min(tokens, model.window) - capacity))
        if over > 0 or not self._limit.is_surely_met(size, queued, patience, rate):
            load = QueueLoad(
                now=now,
                queued=queued,
                held=self.held,
                over=over,
                capacity=capacity,
                budget=self.token_budget,
                rate=rate,
            )
            self._limit.check(size, patience, lambda: self._latest(size, now), load)

    def capacity(self, size: int) -> int:
        """The most tokens that may be held when a request of this cost has been admitted."""
        return self.max_tokens if size <= self.token_budget else int(self.max_tokens * BULK_SHARE)

    def admit(self, request: Request) -> None:
        """Gives the request its place, or raises as `check_admission`.

        An exclusive request bypasses the queue and all limits: the canary must not fail together with user requests.
        """
        if self.closed:
            raise Unavailable(self.closed)
        if self.held and not request.exclusive:
            patience = max(0.0, request.deadline - request.arrived)
            self.check_admission(request.model, request.tokens, request.arrived, patience=patience)
        self.last_number = request.number = self.last_number + 1
        self.last_arrival = request.arrived
        self._waiting[request.number] = request
        if request.exclusive:
            self._exclusive[request.number] = request
            return
        self.held += request.held
        request.virtual_finish = finish = self._fair.join(request.number, request.size)
        self._limit.recent.add(round(finish - self._fair.virtual_time), request.size, request.arrived)
        if self._ages(request.size):
            self._ageing.append((request.arrived, request.number))

    def _ages(self, size: int) -> bool:
        """Whether a request of `size` moves forward when it is late."""
        return size * AGEING_SHARE <= self.max_wait_seconds * self.tokens_per_second

    def _latest(self, size: int, now: float) -> float:
        """Upper bound, in seconds: no request of `size` waits longer, because late requests are served first."""
        if not self._ages(size):
            return math.inf
        while self._ageing and self._ageing[0][1] not in self._waiting:
            self._ageing.popleft()
        oldest = self._ageing[0][0] if self._ageing else now
        return max(self.max_wait_seconds, now - oldest)

    def add(self, request: Request, chunk: Chunk[Any]) -> None:
        """The next chunk of a request, whose place moves if its size is not as expected."""
        queued, before = request.queued, request.queued + request.left
        request.add(chunk)
        more = request.queued + request.left - before
        if more and not request.exclusive:
            at = self._fair.expect(request.number, request.virtual_finish, request.size, before, more)
            request.in_order &= at == request.virtual_finish  # the entry of another place is void
            request.virtual_finish = at
            self._hold(request)
        if not request.aside:
            self.tokens += request.queued - queued
            self._put_in_order(request)
        if not request.queued and not request.left:
            self.remove(request)

    def release(self, model: QueuedModel) -> None:
        """The model has been loaded: its requests that were set aside take their places again."""
        model.aside = 0
        for request in self._waiting.values():
            if request.aside and request.model is model:
                request.aside = False
                self.tokens += request.queued
                self._put_in_order(request)

    def next_batch(self, now: float, selection: Selection = WHOLE_BUDGET) -> NextBatch:
        """Late requests, then the others in their order, until the token budget or a smaller `selection` is used up.

        An exclusive request is first and alone. The first sequence of a batch is taken however long it is, so a batch
        is empty only if nothing is queued, or all that is queued has expired or waits for its model.
        """
        batch = NextBatch(min(selection.tokens or self.token_budget, self.token_budget))
        for exclusive in self._exclusive.values():
            if exclusive.queued and not self._set_aside(batch, exclusive):
                self._take(batch, exclusive, batch.tokens_left)
                return batch
        half = batch.tokens_left // 2
        if (first := selection.first) is not None and not self._is_out(batch, first, now):
            self._take(batch, first, 0 if selection.all_cores else batch.tokens_left)
            if selection.all_cores:
                return batch
        if self._ageing and self._ageing[0][0] + self.max_wait_seconds <= now:
            self._take_late(batch, now, half)
        self._take_in_order(batch, now, half)
        if batch.jobs:
            self._batches_since_small += 1
        return batch

    def _take_late(self, batch: NextBatch, now: float, half: int) -> None:
        """Requests that have waited for `max_wait_seconds`, first come, first served, up to half of the batch."""
        waiting, ageing = self._waiting, self._ageing
        idle: list[tuple[float, int]] = []  # requests without a sequence that can be dispatched
        while ageing and ageing[0][0] + self.max_wait_seconds <= now and batch.tokens_left > half:
            request = waiting.get(ageing[0][1])
            if request is None:
                ageing.popleft()
            elif request.deadline <= now:
                self._expire(batch, request)
            elif not request.queued or self._set_aside(batch, request):
                idle.append(ageing.popleft())
            elif not self._take(batch, request, batch.tokens_left - half):
                break
        ageing.extendleft(reversed(idle))

    def _take_in_order(self, batch: NextBatch, now: float, half: int) -> None:
        """A request whose next sequence does not fit the rest keeps its place: shorter ones pass it, it cannot starve.

        For RECENT_BATCHES batches after a small request, a bulk request (larger than a batch) may use only half of each
        batch: the next small request neither waits for a full batch to end nor shares it.
        """
        skipped: list[Request] = []
        while self._order and batch.tokens_left > 0 and len(skipped) < MAX_SKIPPED:
            finish, number = heappop(self._order)
            request = self._waiting.get(number)
            if request is None or not request.in_order or finish != request.virtual_finish:
                continue
            request.in_order = False
            if (request.deadline <= now or not request.model.in_memory) and self._is_out(batch, request, now):
                continue
            bulk = request.size > self.token_budget  # judged by original size: the tail of a bulk request is still bulk
            kept_free = half if bulk and self._batches_since_small < RECENT_BATCHES else 0
            taken = self._take(batch, request, batch.tokens_left - kept_free)
            if taken and not bulk:
                self._batches_since_small = 0
            if request.queued:
                skipped.append(request)
        for request in skipped:
            self._put_in_order(request)

    def _is_out(self, batch: NextBatch, request: Request, now: float) -> bool:
        """Removes the request if its deadline has passed, and sets it aside if its model is not in memory."""
        if request.deadline <= now:
            self._expire(batch, request)
            return True
        return self._set_aside(batch, request)

    def _expire(self, batch: NextBatch, request: Request) -> None:
        self.remove(request)
        batch.expired.append(request)

    def _set_aside(self, batch: NextBatch, request: Request) -> bool:
        """Whether the request waits for its model; the first request that waits for a model adds it to `to_load`."""
        model = request.model
        if not model.in_memory and not request.aside:
            request.aside, request.in_order = True, False
            self.tokens -= request.queued
            if not model.aside:
                batch.to_load.append(model)
            model.aside += 1
        return request.aside

    def _take(self, batch: NextBatch, request: Request, max_tokens: int) -> int:
        """Moves the next sequences that fit into `max_tokens` to the batch; how many tokens they have.

        Moves nothing if the batch has sequences of another model.
        """
        if batch.model is None:
            batch.model = request.model
            if request.model.budget < batch.tokens_left:
                batch.tokens_left = int(request.model.budget)
                max_tokens = min(max_tokens, batch.tokens_left)
        elif batch.model is not request.model:
            return 0
        queued = request.queued
        batch.jobs += request.dispatch(max_tokens, always_one=not batch.jobs)
        taken = queued - request.queued
        batch.tokens_left -= taken
        self.tokens -= taken
        last = not request.queued and not request.left
        if last:
            self._forget(request)
        elif not request.exclusive:
            self._hold(request)
        if taken and self._waiting and not request.exclusive:
            self._fair.serve(request.virtual_finish, taken, request.size, last=last)
        return taken

    def _hold(self, request: Request) -> None:
        """Counts what the request may still have here, after some of it was dispatched or another size is expected."""
        held = min(math.ceil(request.unserved / request.model.scale), request.model.window)
        self.held += held - request.held
        request.held = held

    def remove(self, request: Request) -> None:
        """Drops what the request has not dispatched. Does nothing if it is not queued."""
        if request.number not in self._waiting:
            return
        if not request.exclusive:
            self._fair.leave(request.number, request.virtual_finish, request.unserved, request.size)
        if not request.aside:
            self.tokens -= request.queued
        self._forget(request)

    def close(self, reason: str) -> list[Request]:
        """Admits no request from now on; removes and returns those that are queued."""
        self.closed, requests = reason, list(self._waiting.values())
        for request in requests:
            self.remove(request)
        return requests

    def shrink(self, tokens: int) -> None:
        """A batch of `tokens` did not fit the memory: from now on at most half of it."""
        self.token_budget = max(1, min(self.token_budget, tokens // 2))

    def _put_in_order(self, request: Request) -> None:
        if request.queued and not request.in_order and not request.exclusive:
            request.in_order = True
            heappush(self._order, (request.virtual_finish, request.number))

    def _forget(self, request: Request) -> None:
        del self._waiting[request.number]
        request.model.aside -= request.aside
        if request.exclusive:
            del self._exclusive[request.number]
        else:
            self.held -= request.held
        if not self._waiting:
            self._order.clear()
            self._ageing.clear()
            self._fair.clear()
