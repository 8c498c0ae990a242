"""Admitted requests until they end: admission, deadlines, how each ends. A request may bring its sequences later.

Knows the queue and its rate; knows nothing of batches, runs or texts.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from model_export.artifact.batch import Tokens
from service.errors import DeadlineExceeded, InferenceFailed, ServiceError, TooLarge, TooMuchForDeadline, Unavailable
from service.scheduling.queue import RequestQueue
from service.scheduling.request import QueuedRequest
from service.scheduling.results import InferenceResult, RequestInParts
from service.scheduling.stats import RequestCounts
from service.scheduling.watchdog import Clock

SIZE_MARGIN = 1.25  # an expected size may be so much over the limit: only known sizes are held to it
FITTING_SHARE = 0.9  # of what a limit allows, in the size that an error names


@dataclass(slots=True, eq=False)
class AdmittedRequests:
    """`pending` holds those that have not ended; `on_work` is called when the queue has something new."""

    queue: RequestQueue
    clock: Clock
    on_work: Callable[[], None]
    counts: RequestCounts  # of clients
    canaries: RequestCounts
    pending: set[QueuedRequest] = field(default_factory=set)

    def start(
        self, admit: Callable[[QueuedRequest], None], work: Sequence[Tokens], timeout_seconds: float
    ) -> QueuedRequest:
        """Raises what `admit` raises, and counts it."""
        now = self.clock()
        return self._admit(admit, QueuedRequest(list(work), arrived=now, deadline=now + timeout_seconds))

    def begin(self, sequences: int, tokens: int, timeout_seconds: float) -> RequestInParts:
        """Admits a request whose sequences come later, by the tokens that are expected of them.

        Their number is expected too, and only errors name it: the last part says that it is the last. Raises as
        RequestQueue.admit, and TooMuchForDeadline where the request cannot meet its deadline.
        """
        now = self.clock()
        request = QueuedRequest(
            [], arrived=now, deadline=now + timeout_seconds, missing=sequences, reserved=max(1, tokens)
        )
        self._admit(self._admit_expected, request)
        return RequestInParts(
            ended=request.future,
            append=partial(self._append, request),
            finish=partial(self.finish, request),
            withdraw=partial(self._leave, request),
        )

    async def finish(self, request: QueuedRequest) -> InferenceResult:
        """Waits until the request has ended."""
        try:
            await request.future
        finally:
            self._leave(request)
        queue_seconds = self.clock() - request.arrived - request.forward_seconds
        return InferenceResult(rows=request.rows, queue_seconds=queue_seconds, forward_seconds=request.forward_seconds)

    def expire(self, request: QueuedRequest) -> None:
        """Only while some of its sequences do not run: a request that is wholly in a run is answered, late or not."""
        if not request.dispatched_all:
            waited = f"the deadline passed after {self.clock() - request.arrived:.3f} s in the queue"
            inputs = len(request.work) + request.missing
            ran = f"{request.dispatched} of {inputs} inputs had been dispatched"
            tokenized = f", {len(request.work)} tokenized" if request.missing else ""
            self.fail(request, DeadlineExceeded(f"{waited}; {ran}{tokenized}"))

    def fail(self, request: QueuedRequest, error: ServiceError) -> None:
        self.queue.remove(request)
        if not request.future.done():
            request.future.set_exception(error)

    def close(self, reason: str) -> None:
        """Answers every request that does not wholly run with 503."""
        for request in self.queue.close(reason):
            self.fail(request, Unavailable(reason))

    def _admit(self, admit: Callable[[QueuedRequest], None], request: QueuedRequest) -> QueuedRequest:
        try:
            admit(request)
        except ServiceError:
            self._counts_of(request).refuse(1)
            raise
        self._counts_of(request).received += 1
        self.pending.add(request)
        loop = asyncio.get_running_loop()
        request.future = loop.create_future()
        request.timer = loop.call_later(request.deadline - request.arrived, self.expire, request)
        self.on_work()
        return request

    def _counts_of(self, request: QueuedRequest) -> RequestCounts:
        return self.canaries if request.exclusive else self.counts

    def _admit_expected(self, request: QueuedRequest) -> None:
        """An expected size of a little more than the queue takes counts as what it takes."""
        if not self.queue.closed and not self.queue.suspended:
            self._check_expected(request)
        request.size = request.reserved = min(request.reserved, self.queue.capacity(request.reserved))
        self.queue.admit(request)

    def _append(self, request: QueuedRequest, work: Sequence[Tokens], reserved: int) -> None:
        """As RequestInParts.append: does nothing where the request has ended, and ends it where it is too large."""
        if request.future.done():
            return
        if not request.missing:
            self.fail(request, InferenceFailed("the request brought inputs after its last"))
            return
        self.queue.extend(request, work, reserved)
        try:
            self._check_expected(request)
        except TooLarge as error:
            self.fail(request, error)
        else:
            self.on_work()

    def _check_expected(self, request: QueuedRequest) -> None:
        """Raises TooLarge where the queue cannot take all of it, TooMuchForDeadline where the device is too slow.

        The latter only before the first answer, and for a request that could be split.
        """
        tokens, inputs = request.tokens, len(request.work) + request.missing
        capacity, rate = self.queue.capacity(tokens), self.queue.tokens_per_second
        size = f"the request has {'about ' if request.missing else ''}{tokens} tokens"
        if tokens - request.reserved > capacity or tokens > SIZE_MARGIN * capacity:
            limit = f"the queue takes at most {capacity} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"{size}; {limit}: {_fitting(inputs, capacity / tokens)}")
        seconds = request.deadline - self.clock()
        if inputs > 1 and tokens > self.queue.token_budget and tokens / rate > seconds and not request.answered:
            limit = f"which take about {tokens / rate:.1f} s here, and its deadline is in {max(0.0, seconds):.1f} s"
            way_out = f"{_fitting(inputs, seconds * rate / tokens)}, or a longer x-request-timeout-ms"
            raise TooMuchForDeadline(f"{size}, {limit}: {way_out}")

    def _leave(self, request: QueuedRequest) -> None:
        """Counts how the request has ended; one that has not is withdrawn. Does nothing where it has been counted."""
        if request not in self.pending:
            return
        request.timer.cancel()
        self.pending.remove(request)
        if not request.dispatched_all:
            self.queue.remove(request)
        future, counts = request.future, self._counts_of(request)
        if not future.done() or future.cancelled():
            future.cancel()
            counts.cancelled += 1
        elif (error := future.exception()) is None:
            counts.answered += 1
        elif isinstance(error, DeadlineExceeded):
            counts.expired += 1
        else:
            counts.failed += 1


def _fitting(inputs: int, share: float) -> str:
    """The way out for a request of which `share` fits."""
    most = int(FITTING_SHARE * share * inputs)
    return f"send at most {most} inputs like these at once" if most >= 1 else "send less at once"
