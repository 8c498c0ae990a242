"""The scheduling policy: which requests are admitted, which sequences form the next batch, which deadlines have passed.

Plain synchronous code: knows no clock, no event loop and no model.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from model_export.artifact.batch import Tokens
from service.errors import Overloaded, TooLarge, Unavailable
from service.scheduling.request import QueuedRequest, SequenceJob

QUANTUM = 64  # tokens that a request may dispatch per turn; what it dispatches beyond is paid for by its next turns
MIN_SHARERS = 4  # requests that fit into a batch even when each of them uses its whole quantum
RECENT_BATCHES = 32  # for so many batches after a small request, bulk requests get half of each batch
MAX_SKIPPED = 32  # requests whose next sequence does not fit the batch that are skipped before it is dispatched
BULK_SHARE = 0.9  # of the queue's tokens for requests larger than a batch: the rest stays free for small ones
SUSPENDED_RETRY_SECONDS = 5.0
GOLDEN_RATIO = 0.618  # its multiples are spread evenly, so that rejected clients do not all retry at the same time


@dataclass(slots=True, eq=False)
class NextBatch:
    jobs: Sequence[SequenceJob]
    expired: Sequence[QueuedRequest]  # taken out of the queue because their deadlines have passed


@dataclass(slots=True, kw_only=True, eq=False)
class RequestQueue:
    """Deficit round robin over requests, measured in tokens; admission by queued tokens and by estimated wait.

    `tokens` is always the sum of what the queued requests have not dispatched yet.
    """

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; for estimates of the wait
    closed: str = ""  # why no request is admitted any more
    suspended: str = ""  # why none but the exclusive ones is admitted at the moment
    quantum: int = field(init=False)
    tokens: int = 0
    reserved: int = 0  # expected of the sequences that admitted requests still miss
    _first_turn_tokens: int = 0  # the sum of all requests' next turns: dispatched before a new request's first turn
    _later_tokens: int = 0  # at most so many tokens are dispatched in the round after that
    _requests_by_bits: list[int] = field(default_factory=lambda: [0] * 64)  # by bit length of their queued tokens
    _tokens_by_bits: list[int] = field(default_factory=lambda: [0] * 64)  # the queued tokens of those
    _reserving: int = 0  # requests that miss sequences
    _batches_since_small: int = 10**6
    _rejections: int = 0
    _ring: OrderedDict[QueuedRequest, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.quantum = max(1, min(QUANTUM, self.token_budget // MIN_SHARERS))

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def fills_a_batch(self) -> bool:
        """Whether the next batch would not grow by waiting."""
        return self.tokens >= self.token_budget

    @property
    def oldest(self) -> float | None:
        """When the request that has waited longest arrived."""
        return min((request.arrived for request in self._ring), default=None)

    def wait_seconds(self, size: int) -> float:
        """Estimated wait of a new request of `size` tokens. A larger request counts with only `size` tokens."""
        reserved = min(self.reserved, self._reserving * max(size, self.quantum))
        return (max(self._first_turn_tokens, self._tokens_ahead(size)) + reserved) / self.tokens_per_second

    def check_admission(self, size: int, *, patience: float = math.inf) -> None:
        """Cheap, so that it can also be called with an estimate before anything is tokenized.

        Raises Unavailable when closed or suspended, TooLarge where `size` tokens could never fit, Overloaded where they
        do not fit now or would wait longer than `patience` or `max_wait_seconds`.
        """
        if self.closed:
            raise Unavailable(self.closed)
        if self.suspended:
            raise suspension(self.suspended)
        capacity = self.capacity(size)
        if size > capacity:
            limit = f"the queue takes at most {capacity} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"the request has {size} tokens; {limit}: send it in parts")
        over, patience = self.tokens + self.reserved + size - capacity, min(patience, self.max_wait_seconds)
        wait = self.wait_seconds(size)
        if over <= 0 and wait <= patience:
            return
        seconds = max(over / self.tokens_per_second, self._seconds_until(size, patience))
        seconds += self.token_budget / self.tokens_per_second
        self._rejections += 1
        retry = max(1.0, seconds) * (1.0 + self._rejections * GOLDEN_RATIO % 1.0 / 2)
        state = f"{self.tokens} tokens, about {wait:.1f} s before this request"
        raise Overloaded(f"the queue is full ({state}); retry in {retry:.0f} s", retry_after=retry)

    def capacity(self, size: int) -> int:
        """The most tokens that may be queued when a request of `size` tokens has been admitted."""
        return self.max_tokens if size <= self.token_budget else int(self.max_tokens * BULK_SHARE)

    def admit(self, request: QueuedRequest) -> None:
        """Appends the whole request, or raises as `check_admission`."""
        self.check_admission(request.size, patience=max(0.0, request.deadline - request.arrived))
        if request.missing:
            self.reserve(request)
        else:
            self._append(request)

    def reserve(self, request: QueuedRequest, sign: int = 1) -> None:
        """Counts the tokens that an admitted request is expected to bring; with -1 no longer."""
        self.reserved += sign * request.reserved
        self._reserving += sign * (request.missing > 0)

    def extend(self, request: QueuedRequest, work: Sequence[Tokens], reserved: int) -> None:
        """Adds sequences that an admitted request missed; `reserved` tokens are expected of those after them."""
        queued = request in self._ring
        if queued:
            self._count(request, -1)
        self.reserve(request, -1)
        request.append(work, reserved)
        self.reserve(request)
        if queued:
            self._count(request, 1)
        else:
            self._append(request)

    def admit_exclusive(self, request: QueuedRequest) -> None:
        """Bypasses the queue and all limits, in its own batch: the canary must not fail together with user requests."""
        if self.closed:
            raise Unavailable(self.closed)
        request.exclusive = True
        self._prepend(request)

    def next_batch(self, now: float, share: int | None = None) -> NextBatch:
        """Requests take turns until the token budget, or a smaller `share` of tokens, is used up.

        The first sequence is always dispatched, however long. A request whose next sequence does not fit the rest keeps
        its turn for the next batch, so that it cannot starve and shorter ones do not wait for it. For RECENT_BATCHES
        batches after a small request, a bulk request (larger than a batch) may use only half of each batch: the next
        small request neither waits for a full batch to end nor shares one.
        """
        jobs: list[SequenceJob] = []
        expired: list[QueuedRequest] = []
        skipped: list[QueuedRequest] = []
        room = self.token_budget if share is None else min(share, self.token_budget)
        reserved = room // 2
        while self._ring and room > 0 and len(skipped) < MAX_SKIPPED:
            request = next(iter(self._ring))
            self.remove(request)
            if request.deadline <= now:
                expired.append(request)
                continue
            if request.exclusive:
                request.deficit = request.size
                jobs = request.dispatch(request.size, always_one=True)
                break
            if request.deficit <= 0:
                request.deficit += self.quantum
            bulk = request.size > self.token_budget  # judged by original size: the tail of a bulk request is still bulk
            kept_free = reserved if bulk and self._batches_since_small < RECENT_BATCHES else 0
            queued = request.queued_tokens
            jobs += request.dispatch(room - kept_free, always_one=not jobs)
            room -= queued - request.queued_tokens
            if not bulk:
                self._batches_since_small = 0
            if not request.queued_tokens:
                continue
            if request.deficit > 0:
                skipped.append(request)
            else:
                self._append(request)
        for request in reversed(skipped):
            self._prepend(request)
        if jobs:
            self._batches_since_small += 1
        return NextBatch(jobs, expired)

    def remove(self, request: QueuedRequest) -> bool:
        """Drops what the request has not dispatched; False where it is not queued."""
        if request not in self._ring:
            return False
        del self._ring[request]
        self._count(request, -1)
        return True

    def close(self, reason: str) -> list[QueuedRequest]:
        """Admits no request from now on; removes and returns the queued ones."""
        self.closed = reason
        requests = list(self._ring)
        for request in requests:
            self.remove(request)
        return requests

    def shrink(self, tokens: int) -> None:
        """A batch of `tokens` did not fit the memory: from now on at most half of it."""
        self.token_budget = max(1, min(self.token_budget, tokens // 2))

    def _append(self, request: QueuedRequest) -> None:
        self._ring[request] = None
        self._count(request, 1)

    def _prepend(self, request: QueuedRequest) -> None:
        self._append(request)
        self._ring.move_to_end(request, last=False)

    def _count(self, request: QueuedRequest, sign: int) -> None:
        queued = request.queued_tokens
        turn = min(queued, max(self.quantum, request.longest))  # an upper bound: the wait never grows meanwhile
        self.tokens += sign * queued
        self._first_turn_tokens += sign * turn
        self._later_tokens += sign * min(queued - turn, self.quantum + request.longest)
        bits = queued.bit_length()
        self._requests_by_bits[bits] += sign
        self._tokens_by_bits[bits] += sign * queued

    def _tokens_ahead(self, size: int) -> int:
        """Tokens dispatched before a new request of `size` tokens ends; at most twice too many, never too few."""
        bits = size.bit_length()
        return sum(self._tokens_by_bits[:bits]) + size * (len(self._ring) - sum(self._requests_by_bits[:bits]))

    def _seconds_until(self, size: int, patience: float) -> float:
        """How long, if no other request arrives, until the estimated wait is down to `patience`: 0 where it is."""
        wait = self.wait_seconds(size)
        if wait <= patience:
            return 0.0
        later = self._later_tokens / self.tokens_per_second
        if self._tokens_ahead(size) <= self._first_turn_tokens and later <= patience:
            return wait + later - patience  # enough requests end in this round, while the others have their turns
        return self.tokens / self.tokens_per_second - patience / 2


def suspension(reason: str) -> Unavailable:
    return Unavailable(reason, code="suspended", retry_after=SUSPENDED_RETRY_SECONDS)
