"""A discrete simulation of a device behind the real queue: time in seconds, no event loop."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import DeadlineTooShort, Overloaded
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import FIRST_MODEL, Chunk, QueuedModel, Request
from tests.service.fakes import sequence

FOREVER = 1e9
WINDOW = 2  # batches: more chunks of a request are sent until it has so much in the queue


@dataclass(slots=True, eq=False)
class Arrival:
    """One request as a client sends it, and what became of it."""

    at: float
    lengths: list[int]
    patience: float = FOREVER  # seconds to its deadline
    chunk: int = 10**9  # tokens of a chunk; by default it is sent as a whole
    error: float = 0.0  # of the size that is expected of later chunks: so much of it, and less the fewer are left
    model: QueuedModel = FIRST_MODEL
    asks: bool = False  # what wait the queue promises it, when it is admitted
    promised: float | None = None  # seconds
    retry_at: float | None = None  # of the first refusal
    ended: float | None = None  # when its last sequence had been computed
    expired: bool = False
    sent: int = 0  # sequences

    @property
    def size(self) -> int:
        return sum(self.lengths)

    @property
    def seconds(self) -> float:
        assert self.ended is not None
        return self.ended - self.at

    def next_chunk(self) -> Chunk[Tokens]:
        first, tokens = self.sent, 0
        while self.sent < len(self.lengths) and (not tokens or tokens + self.lengths[self.sent] <= self.chunk):
            tokens += self.lengths[self.sent]
            self.sent += 1
        left = sum(self.lengths[self.sent :])
        expected = max(1, round(left * (1 + self.error * left / self.size))) if left else 0
        return Chunk([tokens_of(n) for n in self.lengths[first : self.sent]], left=expected)


@dataclass(slots=True)
class Simulation:
    """One device that computes `rate` tokens a second, a batch at a time, while something is queued."""

    queue: RequestQueue
    rate: float
    now: float = 0.0
    busy_seconds: float = 0.0
    requests: dict[Request, Arrival] = field(default_factory=dict)

    def run(self, arrivals: Iterable[Arrival], *, until: float = FOREVER) -> None:
        """To the last answer, or to `until`. An arrival during a batch is admitted before the next batch forms."""
        todo = [(one.at, number, one) for number, one in enumerate(arrivals)]
        heapq.heapify(todo)
        while (todo or self.queue.oldest is not None) and self.now < until:
            if self.queue.oldest is None:
                self.now = max(self.now, todo[0][0])
            while todo and todo[0][0] <= self.now:
                self.admit(heapq.heappop(todo)[2])
            self.run_batch()

    def admit(self, one: Arrival) -> bool:
        return not self.admit_or_refuse(one)

    def admit_or_refuse(self, one: Arrival) -> str:
        """The message of the refusal; empty where the request was admitted."""
        chunk = one.next_chunk()
        request = Request(
            arrived=one.at, deadline=one.at + one.patience, tokens=chunk.tokens + chunk.left, model=one.model
        )
        try:
            if one.asks:
                one.promised = promised_wait(self.queue, one.size, one.at)
            self.queue.admit(request)
        except Overloaded as refusal:
            one.retry_at, one.sent = one.at + (refusal.retry_after or 0.0), 0
            return refusal.message
        self.requests[request] = one
        self.queue.add(request, chunk)
        return ""

    def admit_past_the_limit(self, one: Arrival) -> None:
        """As if the longest wait were without end at this moment."""
        limit = self.queue._limit
        limit.max_wait_seconds, most = FOREVER, limit.max_wait_seconds
        assert self.admit(one)
        limit.max_wait_seconds = most

    def run_batch(self) -> int:
        for request, one in self.requests.items():
            while request.left and (len(request.chunks) < 2 or request.queued <= WINDOW * self.queue.token_budget):
                self.queue.add(request, one.next_chunk())
        batch = self.queue.next_batch(self.now)
        for request in batch.expired:
            self.requests.pop(request).expired = True
        tokens = sum(chunk.lengths[index] for chunk, index in batch.jobs)
        self.now += tokens / self.rate
        self.busy_seconds += tokens / self.rate
        for request in {chunk.request for chunk, _ in batch.jobs}:
            if not request.unserved:
                self.requests.pop(request).ended = self.now
        return tokens


def promised_wait(queue: RequestQueue, size: int, now: float) -> float:
    """The shortest deadline with which a request of `size` is admitted, in seconds. Raises as `check_admission`."""
    queue.check_admission(FIRST_MODEL, size, now)
    short, long = 0.0, FOREVER
    while long - short > 1e-6 * long and long > 1e-6:
        middle = (short + long) / 2
        try:
            queue.check_admission(FIRST_MODEL, size, now, patience=middle)
            long = middle
        except DeadlineTooShort:
            short = middle
    return long


tokens_of = cache(partial(sequence, 0))  # of a length


def poisson(
    draw: np.random.Generator, *, tokens_per_second: float, lengths: list[int], seconds: float
) -> list[Arrival]:
    """Requests of these lengths that together offer `tokens_per_second`."""
    gaps = draw.exponential(sum(lengths) / tokens_per_second, int(2 * seconds * tokens_per_second / sum(lengths)) + 50)
    return [Arrival(float(at), lengths) for at in np.cumsum(gaps) if at < seconds]
