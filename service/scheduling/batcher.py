"""Admits requests, takes batches from the queue, runs them and gives each request its own rows."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    NotFinite,
    OutOfMemory,
    ServiceError,
    TooLarge,
    TooMuchForDeadline,
    Unavailable,
    suspension,
)
from packbert.service.scheduling.cores import SERIAL, Concurrency, CoreSharing
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import (
    FIRST_MODEL,
    WHOLE_BUDGET,
    ModelCost,
    Request,
    RunBatch,
    Selection,
    SequenceJob,
    check_not_empty,
    halves,
    run_error,
)
from packbert.service.scheduling.wait import fitting
from packbert.service.scheduling.watchdog import BatchReport, Clock, RequestCounts, RunFailures, Watchdog, average_rate

SIZE_MARGIN = 1.25  # an expected size may be so much over the limit: only known sizes are held to it
MAX_FAILURES_TO_SPLIT = 16  # failures in a row, with no success between, from which on a failing batch is not split
Enter = Callable[[bool, Callable[[], bool]], Awaitable[bool]]
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class Batcher:
    """The requests of one model. `serve` runs batches while `begin` is called; both on one event loop.

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
    last_answer: float = float("-inf")  # when a run last succeeded
    failures_in_a_row: int = 0  # runs
    model: ModelCost = FIRST_MODEL
    enter: Enter | None = None  # holds the model in memory until `leave`, see Device.enter
    leave: Callable[[], None] = lambda: None
    suspended: str = ""  # why none but the exclusive requests is admitted: wrong answers, or `enter` has failed
    dispatcher: "Dispatcher" = field(init=False)  # replaced by that of the first model, for the others
    _pending: set[Request] = field(default_factory=set)  # admitted and not counted as ended
    _loading: set[Request] = field(default_factory=set)  # whose batch waits for the model

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.queue, self.clock, self.concurrency)

    @property
    def tokens_per_second(self) -> float:
        """Of this model, as measured."""
        return self.queue.tokens_per_second / self.model.scale

    async def rate(self) -> float:
        """As InferenceQueue.rate."""
        return self.tokens_per_second

    def begin(
        self, work: Sequence[Tokens], *, sequences: int = 0, tokens: int = 0, part: int = 0, timeout_seconds: float
    ) -> Request:
        """Admits a request with the sequences `work`, or one whose sequences come later.

        That one has `sequences` sequences with `tokens` tokens, as expected: their number is only for errors, as the
        last append says that it is the last. With a `part`, so many tokens are admitted, and the others take the room
        of those that were dispatched; its appends must wait for that. Raises InferenceFailed where `work` would never
        end, what the queue raises, and TooMuchForDeadline where the request cannot meet its deadline.
        """
        now, reserved = self.clock(), max(1, self.model.of(tokens)) if sequences else 0
        if not sequences:
            check_not_empty(work, 0)
        deadline = now + timeout_seconds
        return self._admit(
            Request(
                list(work),
                arrived=now,
                deadline=deadline,
                missing=sequences,
                reserved=reserved,
                part=part,
                model=self.model,
            )
        )

    async def submit_exclusive(self, work: Sequence[Tokens], *, timeout_seconds: float) -> Request:
        """A request with all of its rows, ahead of the queue and in a batch of its own: for the canary."""
        now = self.clock()
        request = Request(list(work), arrived=now, deadline=now + timeout_seconds, exclusive=True, model=self.model)
        return await self._admit(request).finish()

    def append(self, request: Request, work: Sequence[Tokens], reserved: int) -> None:
        """As Request.append; also ends the request where `work` is empty."""
        if request.ended.done():
            return
        if not request.missing:
            self._fail(request, InferenceFailed("the request brought inputs after its last"))
            return
        try:
            check_not_empty(work, len(request.work))
            self.queue.extend(request, work, self.model.of(reserved))
            self._check_expected(request)
        except (InferenceFailed, TooLarge) as error:
            self._fail(request, error)
        else:
            self.dispatcher.wake()

    def withdraw(self, request: Request) -> None:
        """Counts how the request has ended; one that has not is cancelled. Does nothing where it has been counted."""
        if request not in self._pending:
            return
        request.timer.cancel()
        self._pending.remove(request)
        if not request.dispatched_all:
            self.queue.remove(request)
        request.measure_wait(self.clock())
        ended, counts = request.ended, self._counts_of(request)
        if not ended.done() or ended.cancelled():
            ended.cancel()
            counts.cancelled += 1
        elif (error := ended.exception()) is None:
            counts.answered += 1
        elif isinstance(error, DeadlineExceeded):
            counts.expired += 1
        else:
            counts.failed += 1

    def check_admission(self, tokens: int) -> None:
        """Raises and counts what the queue would for so many tokens: for an estimate before a request is read."""
        try:
            self.queue.check_admission(self.model.of(tokens), self.clock())
        except ServiceError:
            self.counts.refuse(1)
            raise

    def close(self, reason: str) -> None:
        """Answers every queued request with 503 and rejects new ones; a run in progress still answers its requests."""
        for request in self.queue.close(reason):
            request.end(Unavailable(reason))
        self.dispatcher.wake()

    def fail_all(self, reason: str) -> None:
        """As `close`, and the requests of the runs in progress are answered with 503 too: the runs will not end."""
        self.close(reason)
        for request in self._pending:
            request.end(Unavailable(reason))

    def suspend(self, reason: str) -> None:
        """Answers every request but the exclusive ones with 503, those in a run too, until it is called with ""."""
        self.suspended = reason
        for request in self._pending if reason else ():
            if not request.exclusive:
                self._fail(request, suspension(reason))

    def _admit(self, request: Request) -> Request:
        """Counts the request, refused or not."""
        counts = self._counts_of(request)
        try:
            if self.suspended and not request.exclusive and not self.queue.closed:
                raise suspension(self.suspended)
            if request.missing:
                self._fit_expected(request)
            self.queue.admit(request)
        except ServiceError:
            counts.refuse(1)
            raise
        counts.received += 1
        self._pending.add(request)
        loop = asyncio.get_running_loop()
        request.queue, request.ended = self, loop.create_future()
        request.timer = loop.call_later(request.deadline - request.arrived, self.expire, request)
        self.dispatcher.wake()
        return request

    def _counts_of(self, request: Request) -> RequestCounts:
        return self.canaries if request.exclusive else self.counts

    def _fit_expected(self, request: Request) -> None:
        """Sets what of its expected size the queue keeps room for: at most what it takes, of a request in parts its
        first part. Raises as `_check_expected`."""
        if not self.queue.closed:
            self._check_expected(request)
        request.size = min(request.reserved, request.room or self.queue.capacity(request.reserved))
        request.later = request.reserved - request.size if request.part else 0
        request.reserved = request.size

    def _check_expected(self, request: Request) -> None:
        """Raises TooLarge where it is no request in parts and the queue cannot take all of it, TooMuchForDeadline
        where the device is too slow.

        The latter only before the first answer, and for a request that could be split.
        """
        tokens, inputs = request.tokens, len(request.work) + request.missing
        capacity, rate = self.queue.capacity(tokens), self.queue.tokens_per_second
        size = f"the request has {'about ' if request.missing else ''}{tokens} tokens"
        if not request.part and (tokens - request.reserved > capacity or tokens > SIZE_MARGIN * capacity):
            limit = f"the queue takes at most {capacity} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"{size}; {limit}: {fitting(inputs, capacity / tokens)}")
        seconds = request.deadline - self.clock()
        if inputs > 1 and tokens > self.queue.token_budget and tokens / rate > seconds and not request.answered:
            limit = f"which take about {tokens / rate:.1f} s here, and its deadline is in {max(0.0, seconds):.1f} s"
            longer = "a longer x-request-timeout-ms (without it: up to BERT_MAX_TIMEOUT_MS)"
            way_out = f"{fitting(inputs, seconds * rate / tokens)}, or {longer}"
            raise TooMuchForDeadline(f"{size}, {limit}: {way_out}")

    def expire(self, request: Request) -> None:
        """Only while some of its sequences do not run: a request that is wholly in a run is answered, late or not."""
        if not request.dispatched_all or request in self._loading:
            waited = f"the deadline passed after {self.clock() - request.arrived:.3f} s in the queue"
            inputs = len(request.work) + request.missing
            ran = f"{request.dispatched} of {inputs} inputs had been dispatched"
            tokenized = f", {len(request.work)} tokenized" if request.missing else ""
            loading = ", and the model was loading" if request in self._loading else ""
            self._fail(request, DeadlineExceeded(f"{waited}; {ran}{tokenized}{loading}"))

    def _fail(self, request: Request, error: ServiceError) -> None:
        self.queue.remove(request)
        request.end(error)

    async def serve(self) -> None:
        """Runs batches until `close`."""
        await self.dispatcher.serve()

    async def run_jobs(self, jobs: Sequence[SequenceJob], *, all_cores: bool) -> None:
        """Runs a batch of this model and delivers its rows. A failed run is halved down to the one that fails."""
        if self.enter is not None and not await self._entered(jobs, self.enter):
            return
        to_run = [jobs]
        while to_run:
            jobs = [job for job in to_run.pop() if not job[0].ended.done()]
            if not jobs:
                continue
            try:
                rows, batch, began, ended = await self._run_batch(jobs, all_cores)
            except Exception as error:  # noqa: BLE001 - its requests fail, and the loop goes on
                to_run += self._split_or_fail(jobs, error)
            else:
                to_run += self._deliver(jobs, rows, began, ended)
                self._record_batch(jobs, batch, began, ended, all_cores)
        self.leave()

    async def _entered(self, jobs: Sequence[SequenceJob], enter: Enter) -> bool:
        """Whether the model is in memory now. Where that fails, its requests get 503 until a canary has entered."""
        requests = {request for request, _ in jobs}
        self._loading |= requests
        try:
            return await enter(not jobs[0][0].exclusive, lambda: not all(one.ended.done() for one in requests))
        except Exception as error:  # noqa: BLE001 - its requests fail, and the loop goes on
            self.suspend(f"the model cannot be loaded: {error}")
            log.error("%s", self.suspended)
            for request in requests:
                self._fail(request, suspension(self.suspended))
            return False
        finally:
            self._loading -= requests

    async def _run_batch(
        self, jobs: Sequence[SequenceJob], all_cores: bool
    ) -> tuple[Sequence[Row | None], Batch, float, float]:
        """A row per job, None where it is not finite; the batch; when the run began and ended.

        Raises what the run raises, and NotFinite where no row is finite.
        """
        sequences = [request.work[index] for request, index in jobs]
        watched = self.watchdog.begin(all_cores=all_cores)
        try:
            rows, batch = await self.run(sequences, all_cores=all_cores)
        finally:
            self.watchdog.end(watched)
        if len(rows) != len(jobs):
            raise ValueError(f"{len(rows)} rows for {len(jobs)} sequences")
        if rows.count(None) == len(rows):
            raise NotFinite("the model's answer holds NaN or infinity")
        return rows, batch, watched.began, self.clock()

    def _record_batch(
        self, jobs: Sequence[SequenceJob], batch: Batch, began: float, ended: float, all_cores: bool
    ) -> None:
        seconds, tokens, waited = ended - began, batch.tokens, began - min([request.arrived for request, _ in jobs])
        cost, full = tokens * self.model.scale, min(self.queue.token_budget, self.model.budget)
        rate, beside = self.queue.tokens_per_second, 1 if all_cores else self.concurrency.side_by_side
        if cost * 2 >= full:
            self.queue.tokens_per_second = average_rate(rate, tokens=beside * cost, seconds=seconds)
        elif 0 < rate * seconds < beside * cost:  # in a small batch, the rate of full ones is higher still
            self.queue.tokens_per_second = beside * cost / seconds
        self.report(
            BatchReport(
                sequences=len(jobs),
                tokens=tokens,
                slots=batch.slots,
                waited_seconds=waited,
                ran_seconds=seconds,
                canary=jobs[0][0].exclusive,
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
        self.last_answer, self.failures_in_a_row = ended, 0
        not_finite = []
        for job, row in zip(jobs, rows, strict=True):
            if row is None:
                not_finite.append(job)
                continue
            request, index = job
            request.rows[index] = row
            request.answered += 1
            if request.forward_until != ended:  # the first row of this run
                request.forward_seconds += ended - max(began, request.forward_until)
                request.forward_until = ended
            if request.answered == len(request.rows):
                request.advance()
        if len(not_finite) == 1:
            return self._split_or_fail(not_finite, NotFinite("the model's answer to this input holds NaN or infinity"))
        return halves(not_finite)

    def _split_or_fail(self, jobs: Sequence[SequenceJob], error: Exception) -> list[Sequence[SequenceJob]]:
        """Counts a failed run; returns what is to run again, in halves, or fails the requests where that is nothing."""
        self.failures_in_a_row += 1
        self.failures.failed_runs += 1
        self.failures.out_of_memory += isinstance(error, OutOfMemory)
        if len(jobs) > 1 and self.failures_in_a_row < MAX_FAILURES_TO_SPLIT:
            if isinstance(error, OutOfMemory):
                self.queue.shrink(sum(request.lengths[index] for request, index in jobs))
            return halves(jobs)
        for request, index in jobs:
            self._fail(request, run_error(error, index if len(jobs) == 1 else None))
        return []


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Takes batches from a queue, for the models that share it, and hands each to the batcher of its model."""

    queue: RequestQueue
    clock: Clock
    concurrency: Concurrency
    _idle: "list[asyncio.Future[None]]" = field(default_factory=list)  # of the loops that wait
    _sharing: CoreSharing = field(init=False)  # among cores
    _in_flight: int = 0  # batches
    _uses_all_cores: bool = False  # the batch in flight is alone

    def __post_init__(self) -> None:
        self._sharing = CoreSharing(self.concurrency, self.queue)

    async def serve(self) -> None:
        """As Batcher.serve."""
        await asyncio.gather(*(self._dispatch_loop() for _ in range(self.concurrency.max_in_flight)))

    async def _dispatch_loop(self) -> None:
        while not self.queue.closed:
            if (selection := self._next_selection()) is not None:
                await self._step(selection)
            else:
                self._idle.append(asyncio.get_running_loop().create_future())
                await self._idle[-1]
        self.wake()

    def wake(self) -> None:
        """Something may be ready for dispatch: one idle loop looks, and wakes the next where it leaves some of it."""
        if self._idle and not (idle := self._idle.pop()).done():
            idle.set_result(None)

    async def _step(self, selection: Selection) -> None:
        """Decides on a batch and runs it."""
        jobs = self._next_batch(selection)
        if jobs:
            self._in_flight += 1
            if self.queue.tokens:
                self.wake()
            await _batcher_of(jobs[0][0]).run_jobs(jobs, all_cores=self._uses_all_cores)
            self._in_flight -= 1
        else:  # all that was taken had expired: others get the event loop before the next try
            await asyncio.sleep(0)

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
            _batcher_of(request).expire(request)
        self._uses_all_cores = not self._in_flight and (selection.all_cores or not self.queue.tokens)
        return batch.jobs


def _batcher_of(request: Request) -> Batcher:
    assert isinstance(request.queue, Batcher)
    return request.queue
