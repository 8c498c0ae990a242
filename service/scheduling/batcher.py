"""Waits: hands batches from the line to the runtime, one after another, and gives each caller its own rows.

A batch leaves as soon as the runtime is free and something waits: no timer, no minimum wait. Where the runtime has lanes, each is free by
itself; where it can prepare one batch while it runs another, a batch that would be full anyway leaves ahead (`Plan`). Knows tokens and time;
knows nothing of HTTP, tasks or ONNX Runtime.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from model_export.artifact.batch import Row, Tokens
from service.errors import DeadlineExceeded, InferenceFailed, NotFinite, OutOfMemory, ServiceError, Unavailable
from service.scheduling.concurrency import SERIAL, Concurrency
from service.scheduling.queue import QueuedRequest, RequestQueue, SequenceJob
from service.scheduling.results import InferenceResult, PendingRequest, RunBatch
from service.scheduling.stats import BatchReport, RequestCounts, RunFailures
from service.scheduling.watchdog import Clock, Watchdog

NEWEST = 0.2  # weight of the newest run in the measured rate
SICK = 16  # failures in a row, with no success between, after which a failing batch is no longer split


@dataclass(eq=False)
class Batcher:
    run: RunBatch
    waiting: RequestQueue
    report: Callable[[BatchReport], None] = lambda report: None
    clock: Clock = time.monotonic
    concurrency: Concurrency = SERIAL
    watchdog: Watchdog = field(default_factory=Watchdog)
    counts: RequestCounts = field(default_factory=RequestCounts)
    faults: RunFailures = field(default_factory=RunFailures)
    last_answer: float = float("-inf")  # when a run last went well
    failures_in_a_row: int = 0  # runs
    _promises: dict[QueuedRequest, PendingRequest] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: str = ""
    _whole: bool = False  # the batch under way has all cores

    def __repr__(self) -> str:
        return f"<Batcher {len(self._promises)} requests ({self.waiting.tokens} tokens waiting), {self.watchdog!r}>"

    @property
    def unanswered(self) -> int:
        return len(self._promises)

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult:
        """One row per sequence of `work`, in its order. Raises Overloaded, TooLarge, DeadlineExceeded, Unavailable or InferenceFailed: then no row counts."""
        caller = self._caller(work, timeout_seconds)
        self._admit(lambda: self.waiting.admit(caller))
        return await self._accompany(caller)

    async def submit_alone(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult:
        """As `submit`, past everyone who waits and in a batch of its own: for the canary."""
        caller = self._caller(work, timeout_seconds)
        self._admit(lambda: self.waiting.admit_exclusive(caller))
        return await self._accompany(caller)

    def check_admission(self, tokens: int) -> None:
        """Raises what `submit` would raise for so many tokens, and counts it: for a guess before a request is read."""
        try:
            self._refuse_when_closed()
            self.waiting.check_admission(tokens)
        except ServiceError:
            self.counts.refuse(1)
            raise

    async def serve(self) -> None:
        """Runs batches until closed; when closed, whatever still waits is answered with 503."""
        await asyncio.gather(*(self._serve_one_by_one() for _ in range(self.concurrency.max_in_flight)))

    async def _serve_one_by_one(self) -> None:
        while not self._closed:
            await self._arrived.wait()
            jobs = self._next_batch() if self._may_leave() else []
            if jobs:
                await self._answer(jobs)
                self._arrived.set()
            else:
                self._arrived.clear()

    def _may_leave(self) -> bool:
        """Whether a batch has a place to go: the device, a free lane, or ahead of its turn where it would not grow by waiting."""
        if not self.watchdog.in_flight:
            return True
        return not self._whole if self.concurrency.per_core else self.waiting.fills_a_batch

    def _next_batch(self) -> Sequence[SequenceJob]:
        in_flight = self.watchdog.in_flight
        taken = self.waiting.next_batch(self.clock(), self.concurrency.share(self.waiting.tokens, in_flight=in_flight))
        for caller in taken.late:
            self._expire(caller)
        self._whole = not in_flight and not self.waiting.tokens
        return taken.jobs

    def close(self, reason: str) -> None:
        """Answers everyone who waits with 503 and refuses newcomers; a run in progress still answers its callers."""
        self._closed = reason
        for caller in self.waiting.clear():
            self._fail(caller, Unavailable(reason))
        self._arrived.set()

    def abandon(self, reason: str) -> None:
        """As `close`, and the callers of the run in progress are given up too: it will not end."""
        self.close(reason)
        for caller in self._promises:
            self._fail(caller, Unavailable(reason))

    def _caller(self, work: Sequence[Tokens], timeout_seconds: float) -> QueuedRequest:
        now = self.clock()
        return QueuedRequest(work, arrived=now, deadline=now + timeout_seconds)

    def _admit(self, join: Callable[[], None]) -> None:
        try:
            self._refuse_when_closed()
            join()
        except ServiceError:
            self.counts.refuse(1)
            raise
        self.counts.received += 1

    async def _accompany(self, caller: QueuedRequest) -> InferenceResult:
        """Waits with a caller who was admitted, until it ends one way or another; counts how."""
        loop = asyncio.get_running_loop()
        promise = self._promises[caller] = PendingRequest(loop.create_future())
        timer = loop.call_later(caller.deadline - caller.arrived, self._expire, caller)
        self._arrived.set()
        try:
            await promise.future
        except asyncio.CancelledError:
            self.waiting.remove(caller)
            self.counts.cancelled += 1
            raise
        except DeadlineExceeded:
            self.counts.expired += 1
            raise
        except ServiceError:
            self.counts.failed += 1
            raise
        else:
            self.counts.answered += 1
        finally:
            timer.cancel()
            del self._promises[caller]
        total = self.clock() - caller.arrived
        rows = [row for row in caller.rows if row is not None]
        return InferenceResult(
            rows=rows, queue_seconds=total - promise.forward_seconds, forward_seconds=promise.forward_seconds
        )

    async def _answer(self, jobs: Sequence[SequenceJob]) -> None:
        """Runs `jobs` together; what fails runs again in halves, until the culprit stands alone. Who left meanwhile is left out."""
        parts = [jobs]
        while parts:
            part = [
                job
                for job in parts.pop()
                if job.caller in self._promises and not self._promises[job.caller].future.done()
            ]
            if part:
                parts += await self._attempt(part)

    async def _attempt(self, jobs: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
        """One run; returns what is to run again, in parts."""
        watched = self.watchdog.begin()
        try:
            rows, batch = await self.run([job.tokens for job in jobs], all_cores=self._whole)
            pairs = list(zip(jobs, rows, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever a run raises, its callers are told and the loop goes on
            return self._after_failure(jobs, error)
        finally:
            self.watchdog.end(watched)
        suspects = [job for job, row in pairs if row is None]
        if len(suspects) == len(jobs):
            return self._after_failure(jobs, NotFinite("the model's answer holds NaN or infinity"))
        started, ended = watched.began, self.clock()
        self.last_answer = ended
        self.failures_in_a_row = 0
        self._deliver([(job, row) for job, row in pairs if row is not None], began=started, ended=ended)
        waited = started - min(job.caller.arrived for job in jobs)
        self._learn(
            BatchReport(
                sequences=len(jobs),
                tokens=batch.tokens,
                slots=batch.slots,
                waited_seconds=waited,
                ran_seconds=ended - started,
            )
        )
        return self._after_not_finite(suspects)

    def _after_failure(self, jobs: Sequence[SequenceJob], error: Exception) -> list[Sequence[SequenceJob]]:
        """What is to run again after a run that raised, or gave nothing finite; the callers are told where that is nothing."""
        self.failures_in_a_row += 1
        self.faults.failed_runs += 1
        if isinstance(error, OutOfMemory):
            self.faults.out_of_memory += 1
        if len(jobs) > 1 and self.failures_in_a_row < SICK:
            if isinstance(error, OutOfMemory):
                self.waiting.shrink(sum(len(job.tokens) for job in jobs))
            return _halves(jobs)
        kind = type(error) if isinstance(error, InferenceFailed) else InferenceFailed
        message = error.message if isinstance(error, ServiceError) else f"the model failed: {type(error).__name__}"
        for job in jobs:
            self._fail(job.caller, kind(message, index=job.index if len(jobs) == 1 else None))
        return []

    def _after_not_finite(self, suspects: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
        """Sequences that share an attention row with the culprit are not finite either, and have done nothing wrong: they run again."""
        if len(suspects) == 1:
            return self._after_failure(suspects, NotFinite("the model's answer to this input holds NaN or infinity"))
        return _halves(suspects)

    def _deliver(self, answered: Sequence[tuple[SequenceJob, Row]], *, began: float, ended: float) -> None:
        for caller in {job.caller for job, _ in answered}:
            if caller in self._promises:
                self._promises[caller].count(began, ended)
        for job, row in answered:
            caller = job.caller
            caller.rows[job.index] = row
            caller.answered += 1
            if caller.answered == len(caller.work) and caller in self._promises:
                self._settle(self._promises[caller].future)

    def _learn(self, report: BatchReport) -> None:
        beside = 1 if self._whole or not self.concurrency.per_core else self.concurrency.max_in_flight
        rate = beside * report.tokens / max(report.ran_seconds, 1e-9)
        if report.tokens * 2 >= self.waiting.token_budget:  # a small batch says nothing of the full rate
            self.waiting.tokens_per_second += NEWEST * (rate - self.waiting.tokens_per_second)
        self.report(report)

    def _fail(self, caller: QueuedRequest, error: ServiceError) -> None:
        self.waiting.remove(caller)
        if caller in self._promises:
            self._settle(self._promises[caller].future, error)

    def _expire(self, caller: QueuedRequest) -> None:
        """Only while something of it waits: what is in a run is answered, late or not."""
        if caller.waiting_tokens and caller in self._promises:
            ran = (
                f"{caller.left} of {len(caller.work)} inputs had left the line" if caller.left else "nothing of it ran"
            )
            self._fail(
                caller,
                DeadlineExceeded(f"the deadline passed after {self.clock() - caller.arrived:.3f} s in the line; {ran}"),
            )

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Unavailable(self._closed)

    @staticmethod
    def _settle(future: asyncio.Future[None], error: ServiceError | None = None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _halves(jobs: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
    """The first half is last: it is taken first."""
    middle = len(jobs) // 2
    return [half for half in (jobs[middle:], jobs[:middle]) if half]
