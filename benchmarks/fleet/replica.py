"""One replica in simulated time: the service's queue, and the decisions of its batcher without an event loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count

import numpy as np

from benchmarks.fleet.machines import Machine
from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import ServiceError
from packbert.service.scheduling.cores import CoreSharing
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import WHOLE_BUDGET, Request, Selection, SequenceJob
from packbert.service.scheduling.watchdog import average_rate


@dataclass(slots=True)
class Events:
    """What happens, in the order of its time; at the same time in the order of its planning."""

    now: float = 0.0  # seconds
    _planned: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def at(self, when: float, do: Callable[[], None]) -> None:
        heappush(self._planned, (when, next(self._numbers), do))

    def run(self) -> None:
        while self._planned:
            self.now, _, do = heappop(self._planned)
            do()


@cache
def text(length: int) -> Tokens:
    """A text of so many tokens."""
    return Tokens(ids=np.zeros(length, np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


@dataclass(slots=True, eq=False)
class Replica:
    """`ended` is called with each admitted request, and whether it was answered: otherwise its deadline has passed.

    Knows nothing of balancers and clients. Its runs do not fail; `tests/benchmarks` compares it with `Batcher`.
    """

    machine: Machine
    events: Events
    ended: Callable[[Request, bool], None]
    max_tokens: int = 200_000
    max_wait_seconds: float = 30.0
    queue: RequestQueue = field(init=False)
    _sharing: CoreSharing = field(init=False)
    _in_flight: int = 0  # batches
    _uses_all_cores: bool = False
    _refusing_seconds: float = 0.0  # of processor time since the last run began: it delays the next

    def __post_init__(self) -> None:
        machine = self.machine
        self.queue = RequestQueue(
            token_budget=machine.token_budget,
            max_tokens=self.max_tokens,
            max_wait_seconds=self.max_wait_seconds,
            tokens_per_second=machine.tokens_per_second,
        )
        self._sharing = CoreSharing(machine.concurrency, self.queue)

    def submit(self, request: Request) -> None:
        """Raises as RequestQueue.admit."""
        try:
            self.queue.admit(request)
        except ServiceError:
            self._refusing_seconds += self.machine.refusal_seconds
            raise
        self.events.at(request.deadline, partial(self._expire, request))
        self._dispatch()

    def _dispatch(self) -> None:
        while (selection := self._next_selection()) is not None:
            self._start_run(selection)

    def _next_selection(self) -> Selection | None:
        """As Batcher._next_selection; nothing is prepared ahead, which is for CUDA."""
        concurrency = self.machine.concurrency
        free = not self._in_flight or (not self._uses_all_cores and self._in_flight < concurrency.side_by_side)
        if not self.queue.tokens or not free:
            return None
        return self._sharing.next(self._in_flight) if concurrency.per_core else WHOLE_BUDGET

    def _start_run(self, selection: Selection) -> None:
        concurrency = self.machine.concurrency
        batch = self.queue.next_batch(self.events.now, selection)
        for request in batch.expired:
            self.ended(request, False)
        if not batch.jobs:
            return
        self._uses_all_cores = not self._in_flight and (selection.all_cores or not self.queue.tokens)
        tokens = sum(request.lengths[index] for request, index in batch.jobs)
        seconds = self.machine.run_seconds(tokens, all_cores=self._uses_all_cores)
        if self._refusing_seconds:
            seconds += self._refusing_seconds / (concurrency.side_by_side if self._uses_all_cores else 1)
            self._refusing_seconds = 0.0
        self._in_flight += 1
        self.events.at(self.events.now + seconds, partial(self._end_run, batch.jobs, tokens, seconds))

    def _end_run(self, jobs: list[SequenceJob], tokens: int, seconds: float) -> None:
        """As Batcher._deliver and Batcher._record_batch."""
        for request, _ in jobs:
            request.answered += 1
            if request.answered == len(request.work):
                self.ended(request, True)
        if tokens * 2 >= self.queue.token_budget:
            beside = 1 if self._uses_all_cores else self.machine.concurrency.side_by_side
            rate = self.queue.tokens_per_second
            self.queue.tokens_per_second = average_rate(rate, tokens=beside * tokens, seconds=seconds)
        self._in_flight -= 1
        self._dispatch()

    def _expire(self, request: Request) -> None:
        if self.queue.remove(request):
            self.ended(request, False)
