"""Admits requests, takes batches from the queue, runs them and gives each request its own rows."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packbert.model_export.artifact.batch import Batch, Row, Tokens

from ..errors import (
    DeadlineExceeded,
    InferenceFailed,
    NotFinite,
    OutOfMemory,
    ServiceError,
    TooMuchForDeadline,
    Unavailable,
    suspension,
)
from .cores import SERIAL, Concurrency, CoreSharing
from .queue import RequestQueue
from .request import WHOLE_BUDGET, Chunk, QueuedModel, Request, RunBatch, Selection, SequenceJob
from .wait import WAITS_ALONE
from .watchdog import BatchReport, Clock, RequestCounts, RunFailures, Watchdog

TIMES_ALONE = WAITS_ALONE + 1  # the default deadline of a large request, in times that it takes alone
FITTING_SHARE = 0.9  # of what a deadline allows, in the size that an error names
MAX_FAILURES_TO_SPLIT = 16  # failures in a row, with no success between, from which on a failing batch is not split
RATE_SECONDS, MAX_RATE_WEIGHT = 5.0, 0.2  # time constant of the measured rate; of the newest batch in it
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class Batcher:
    """The requests of a model. Its dispatcher runs batches while requests are admitted, both on the same event loop.

    Several models share a queue and its `dispatcher`. `counts` and `failures` only grow.
    """

    run: RunBatch
    queue: RequestQueue
    report: Callable[[BatchReport], None] = lambda report: None
    clock: Clock = time.monotonic
    concurrency: Concurrency = SERIAL
    watchdog: Watchdog = field(default_factory=Watchdog)
    counts: RequestCounts = field(default_factory=RequestCounts)  # of clients
    canaries: RequestCounts = field(default_factory=RequestCounts)
    failures: RunFailures = field(default_factory=RunFailures)
    failures_in_a_row: int = 0  # runs
    model: QueuedModel = field(default_factory=QueuedModel)
    load: Callable[[], None] = lambda: None  # called when a request waits for the model to be loaded
    running: int = 0  # batches
    suspended: str = ""  # why only exclusive requests are admitted: wrong answers, or `load` has failed
    dispatcher: "Dispatcher" = field(init=False)  # see `share`
    _pending: set[Request] = field(default_factory=set)  # admitted and not counted as ended
    _fresh: bool = False  # the model was loaded and has not run a batch since
    _progress: asyncio.Event = field(default_factory=asyncio.Event)  # a batch or a request has ended, for `hold`

    def __post_init__(self) -> None:
        self.share(Dispatcher(self.queue, self.clock, self.concurrency))

    def share(self, dispatcher: "Dispatcher") -> None:
        """From now on `dispatcher` hands it its batches, beside those of other models with the same queue."""
        self.dispatcher = dispatcher
        dispatcher.batchers[self.model] = self

    @property
    def tokens_per_second(self) -> float:
        """Of this model, as measured."""
        return self.queue.tokens_per_second / self.model.scale

    def admit(
        self,
        tokens: int,
        inputs: int = 1,
        *,
        timeout_seconds: float,
        max_seconds: float = 0.0,
        exclusive: bool = False,
    ) -> Request:
        """The place of a request with so many `tokens` in `inputs` sequences, as expected; `send` brings them.

        Its deadline follows its size up to `max_seconds`. Raises and counts what the queue raises, TooMuchForDeadline
        if the request cannot meet its deadline, and Unavailable while the model is suspended.
        """
        now, counts = self.clock(), self.canaries if exclusive else self.counts
        takes = tokens * self.model.scale / self.queue.tokens_per_second
        seconds = max(timeout_seconds, min(max_seconds, TIMES_ALONE * takes))
        request = Request(
            arrived=now, deadline=now + seconds, tokens=tokens, inputs=inputs, model=self.model, exclusive=exclusive
        )
        try:
            if self.suspended and not exclusive and not self.queue.closed:
                raise suspension(self.suspended)
            if takes > seconds and inputs > 1 and request.size > self.queue.token_budget:
                raise self._too_much(request, takes, max(0.0, seconds))
            self.queue.admit(request)
        except ServiceError:
            counts.refuse()
            raise
        counts.received += 1
        self._pending.add(request)
        request.timer = asyncio.get_running_loop().call_later(seconds, self.expire, request)
        return request

    def _too_much(self, request: Request, takes: float, seconds: float) -> TooMuchForDeadline:
        size = f"the request has about {request.tokens} tokens, which take about {takes:.1f} s here"
        most = int(FITTING_SHARE * (seconds / takes) * request.inputs)
        less = f"send at most {most} inputs like these at once" if most >= 1 else "send less at once"
        way_out = f"{less}, or a longer x-request-timeout-ms (without it: up to an hour)"
        return TooMuchForDeadline(f"{size}, and its deadline is in {seconds:.1f} s: {way_out}")

    def send(self, request: Request, chunk: Chunk[Any]) -> "asyncio.Future[None]":
        """The next chunk of an admitted request; done when it has its rows, or the request has failed.

        Raises what has ended the request.
        """
        if request.error is not None:
            raise request.error
        chunk.done = asyncio.get_running_loop().create_future()
        self.queue.add(request, chunk)
        if not chunk.missing:
            chunk.done.set_result(None)
        self.dispatcher.wake()
        return chunk.done

    def leave(self, request: Request, *, answered: bool = False) -> None:
        """Ends the request and counts how: a request that has neither failed nor is `answered` is cancelled."""
        if request not in self._pending:
            return
        request.timer.cancel()
        self._pending.remove(request)
        self.queue.remove(request)
        self._progress.set()
        request.queue_seconds = self.clock() - request.arrived - request.forward_seconds
        if request.error is not None:
            request.error.queue_seconds = request.queue_seconds
        counts = self.canaries if request.exclusive else self.counts
        if answered:
            counts.answered += 1
        elif request.error is None:
            counts.cancelled += 1
            request.error = Unavailable("the client has left")  # so that nothing of it runs again after a failed run
        elif isinstance(request.error, DeadlineExceeded):
            counts.expired += 1
        else:
            counts.failed += 1

    async def submit_exclusive(self, work: Sequence[Tokens], *, timeout_seconds: float) -> list[Row]:
        """The rows of a request ahead of the queue and in a batch of its own: for the canary. Raises what ends it."""
        chunk = Chunk(work)
        request = self.admit(chunk.tokens, len(work), timeout_seconds=timeout_seconds, exclusive=True)
        try:
            await self.send(request, chunk)
        finally:
            self.leave(request, answered=request.error is None and not chunk.missing)
        if request.error is not None:
            raise request.error
        return chunk.rows

    def close(self, reason: str) -> None:
        """Answers every queued request with 503 and refuses others; a run in progress still answers its requests."""
        for request in self.queue.close(reason):
            request.fail(Unavailable(reason))
        self.dispatcher.wake()

    def fail_all(self, reason: str) -> None:
        """Does what `close` does, and answers the requests of the runs in progress with 503: these will not end."""
        self.close(reason)
        for request in self._pending:
            request.fail(Unavailable(reason))

    def suspend(self, reason: str, *, all_requests: bool = False) -> None:
        """Answers every request with 503, also those in a run, until it is called with "".

        Exclusive requests go on, unless `all_requests`: then those that are here end too.
        """
        self.suspended = reason
        for request in self._pending if reason else ():
            if all_requests or not request.exclusive:
                self._fail(request, suspension(reason))

    async def hold(self) -> None:
        """No batch of the model begins from now on; returns when none is in progress.

        A model that was just loaded runs a batch first, if a request waits for it.
        """
        while self._fresh and any(one.model is self.model and one.queued for one in self.queue.waiting):
            self._progress.clear()
            await self._progress.wait()
        self.model.in_memory = False
        while self.running:
            self._progress.clear()
            await self._progress.wait()

    def release(self) -> None:
        """The model has been loaded, also after `hold`."""
        self.model.in_memory = self._fresh = True
        self.queue.release(self.model)
        self.dispatcher.wake()

    def expire(self, request: Request) -> None:
        """Only while some of its sequences do not run: a request that is wholly in a run is answered, late or not."""
        if request.unserved:
            waited = f"the deadline passed after {self.clock() - request.arrived:.3f} s in the queue"
            inputs = max(request.inputs, request.sent)
            ran = f"{request.dispatched} of {inputs} inputs had been dispatched"
            tokenized = f", {request.sent} tokenized" if request.left else ""
            loading = ", and the model was loading" if request.aside else ""
            self._fail(request, DeadlineExceeded(f"{waited}; {ran}{tokenized}{loading}"))

    def _fail(self, request: Request, error: ServiceError) -> None:
        self.queue.remove(request)
        request.fail(error)

    async def run_jobs(self, jobs: Sequence[SequenceJob], *, all_cores: bool) -> None:
        """Runs a batch of this model and delivers its rows. A failed run is halved down to the sequence that fails."""
        to_run = [jobs]
        self.running += 1
        while to_run:
            jobs = [job for job in to_run.pop() if job[0].request.error is None]
            if not jobs:
                continue
            watched = self.watchdog.begin(all_cores=all_cores)
            try:
                rows, batch = await self.run([chunk.work[index] for chunk, index in jobs], all_cores=all_cores)
                if len(rows) != len(jobs):
                    raise ValueError(f"{len(rows)} rows for {len(jobs)} sequences")
                if rows.count(None) == len(rows):
                    raise NotFinite("the model's answer holds NaN or infinity")
            except Exception as error:  # noqa: BLE001 - its requests fail, and the loop goes on
                self.watchdog.end(watched)
                to_run += self._split_or_fail(jobs, error)
            else:
                self.watchdog.end(watched)
                ended = self.clock()
                to_run += self._deliver(jobs, rows, watched.began, ended)
                self._record_batch(jobs, batch, watched.began, ended, all_cores)
        self.running -= 1
        self._fresh = False
        self._progress.set()

    def _record_batch(
        self, jobs: Sequence[SequenceJob], batch: Batch, began: float, ended: float, all_cores: bool
    ) -> None:
        seconds, tokens, waited = ended - began, batch.tokens, began - min([chunk.request.arrived for chunk, _ in jobs])
        cost, full = tokens * self.model.scale, min(self.queue.token_budget, self.model.budget)
        rate, beside = self.queue.tokens_per_second, 1 if all_cores else self.concurrency.side_by_side
        if cost * 2 >= full:
            self.queue.tokens_per_second = _average_rate(rate, tokens=beside * cost, seconds=seconds)
        elif 0 < rate * seconds < beside * cost:  # the rate of full batches is higher still
            self.queue.tokens_per_second = beside * cost / seconds
        self.report(
            BatchReport(
                sequences=len(jobs),
                tokens=tokens,
                slots=batch.slots,
                waited_seconds=waited,
                ran_seconds=seconds,
                canary=jobs[0][0].request.exclusive,
                jobs=jobs,
            )
        )

    def _deliver(
        self, jobs: Sequence[SequenceJob], rows: Sequence[Row | None], began: float, ended: float
    ) -> list[Sequence[SequenceJob]]:
        """Gives the finite rows to their requests; returns what is to run again, in halves.

        A row that is not finite may be innocent: another sequence in its attention row can have caused it. So these run
        again.
        """
        self.failures_in_a_row = 0
        not_finite = []
        for job, row in zip(jobs, rows, strict=True):
            if row is None:
                not_finite.append(job)
                continue
            chunk, index = job
            request = chunk.request
            if request.forward_until != ended:  # the first row of this run
                request.forward_seconds += ended - max(began, request.forward_until)
                request.forward_until = ended
            request.put(chunk, index, row)
        if len(not_finite) == 1:
            return self._split_or_fail(not_finite, NotFinite("the model's answer to this input holds NaN or infinity"))
        return _halves(not_finite) if not_finite else []

    def _split_or_fail(self, jobs: Sequence[SequenceJob], error: Exception) -> list[Sequence[SequenceJob]]:
        """Counts a failed run. Returns what is to run again, in halves; if that is nothing, the requests fail."""
        self.failures_in_a_row += 1
        self.failures.failed_runs += 1
        self.failures.out_of_memory += isinstance(error, OutOfMemory)
        if len(jobs) > 1 and self.failures_in_a_row < MAX_FAILURES_TO_SPLIT:
            if isinstance(error, OutOfMemory):
                self.queue.shrink(sum(chunk.lengths[index] for chunk, index in jobs))
            return _halves(jobs)
        for chunk, index in jobs:
            self._fail(chunk.request, _run_error(error, chunk.first + index if len(jobs) == 1 else None))
        return []


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Takes batches from a queue, for the models that share it, and hands each to the batcher of its model."""

    queue: RequestQueue
    clock: Clock
    concurrency: Concurrency
    batchers: dict[QueuedModel, Batcher] = field(default_factory=dict)
    _idle: "list[asyncio.Future[None]]" = field(default_factory=list)  # of the loops that wait
    _sharing: CoreSharing = field(init=False)  # among cores
    _in_flight: int = 0  # batches
    _uses_all_cores: bool = False  # the batch in flight is alone

    def __post_init__(self) -> None:
        self._sharing = CoreSharing(self.concurrency, self.queue)

    async def serve(self) -> None:
        """Runs batches until the queue is closed."""
        await asyncio.gather(*(self._dispatch_loop() for _ in range(self.concurrency.max_in_flight)))

    async def _dispatch_loop(self) -> None:
        while not self.queue.closed:
            if (selection := self._next_selection()) is None:
                self._idle.append(asyncio.get_running_loop().create_future())
                await self._idle[-1]
            elif jobs := self._next_batch(selection):
                self._in_flight += 1
                if self.queue.tokens:
                    self.wake()
                await self.batchers[jobs[0][0].request.model].run_jobs(jobs, all_cores=self._uses_all_cores)
                self._in_flight -= 1
                jobs = ()  # while the loop waits, it keeps no request in memory
            else:  # all that was taken had expired or waits for its model: others get the loop before the next try
                await asyncio.sleep(0)
        self.wake()

    def wake(self) -> None:
        """Something may be ready for dispatch: an idle loop looks, and wakes the next if it leaves some of it."""
        if self._idle and not (idle := self._idle.pop()).done():
            idle.set_result(None)

    def _next_selection(self) -> Selection | None:
        """What the next batch may take: if the device is idle, a core is free, or a full batch can be prepared ahead.

        None: nothing is dispatched now.
        """
        if not self.queue.tokens:
            return None
        if self.concurrency.per_core:
            return None if self._in_flight and self._uses_all_cores else self._sharing.next(self._in_flight)
        return WHOLE_BUDGET if not self._in_flight or self.queue.fills_a_batch else None

    def _next_batch(self, selection: Selection) -> Sequence[SequenceJob]:
        batch = self.queue.next_batch(self.clock(), selection)
        for request in batch.expired:
            self.batchers[request.model].expire(request)
        for model in batch.to_load:
            self.batchers[model].load()
        self._uses_all_cores = not self._in_flight and (selection.all_cores or not self.queue.tokens)
        return batch.jobs


def _average_rate(rate: float, *, tokens: float, seconds: float) -> float:
    """Tokens a second of all runs, from their `rate` and the newest run: the harmonic mean.

    The arithmetic mean of rates is too high.
    """
    weight = min(MAX_RATE_WEIGHT, seconds / RATE_SECONDS)
    return 1 / ((1 - weight) / rate + weight * seconds / tokens)


def _halves(jobs: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
    """The first half is last: it is taken first."""
    middle = len(jobs) // 2
    return [half for half in (jobs[middle:], jobs[:middle]) if half]


def _run_error(error: Exception, index: int | None) -> InferenceFailed:
    """What a request gets whose run raised `error`; `index`: its sequence that is the cause, None if unknown."""
    kind = type(error) if isinstance(error, InferenceFailed) else InferenceFailed
    message = error.message if isinstance(error, ServiceError) else f"the model failed: {type(error).__name__}"
    return kind(message, index=index)
