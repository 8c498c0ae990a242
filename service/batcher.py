"""Waits: hands batches from the line to the runtime, one after another, and gives each caller its own rows.

A batch leaves as soon as the runtime is free and something waits: no timer, no minimum wait. Knows tokens and time; knows
nothing of HTTP, tasks or ONNX Runtime.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from model_export.batch import Batch, Row, Tokens
from service.errors import RunFailed, ServiceError, Unavailable
from service.waiting import Caller, Job, Waiting

Run = Callable[[Sequence[Tokens]], Awaitable[tuple[list[Row], Batch]]]
Clock = Callable[[], float]
NEWEST = 0.2  # weight of the newest run in the measured rate


class Expired(Unavailable):
    """The deadline passed while work of the request was still waiting; that work never ran."""

    code = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One run that went well."""

    sequences: int
    tokens: int
    slots: int  # attention slots, filled or not
    waited_seconds: float  # the longest wait in the batch
    ran_seconds: float


@dataclass(slots=True)
class Counts:
    """Requests by how they ended. received = all the others + those still in the batcher, at any moment."""

    received: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    rows: list[Row]
    queue_seconds: float
    forward_seconds: float  # of the runs this request had a part in


@dataclass(slots=True, eq=False)
class _Promise:
    future: asyncio.Future[None]
    forward_seconds: float = 0.0


@dataclass(eq=False)
class Batcher:
    run: Run
    waiting: Waiting
    report: Callable[[BatchReport], None] = lambda report: None
    clock: Clock = time.monotonic
    counts: Counts = field(default_factory=Counts)
    last_answer: float = float("-inf")  # when a run last went well
    running_since: float | None = None
    _promises: dict[Caller, _Promise] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: str = ""

    def __repr__(self) -> str:
        return f"<Batcher {len(self._promises)} requests ({self.waiting.tokens} tokens waiting), running since {self.running_since}>"

    @property
    def unanswered(self) -> int:
        return len(self._promises)

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> Answer:
        """One row per sequence of `work`, in its order. Raises Overloaded, TooLarge, Expired, Unavailable or RunFailed: then no row counts."""
        caller = Caller(work, arrived=self.clock(), deadline=self.clock() + timeout_seconds)
        self.counts.received += 1
        try:
            self._refuse_when_closed()
            self.waiting.admit(caller)
        except ServiceError:
            self.counts.refused += 1
            raise
        promise = self._promises[caller] = _Promise(asyncio.get_running_loop().create_future())
        timer = asyncio.get_running_loop().call_later(timeout_seconds, self._drop_expired)
        self._arrived.set()
        try:
            await promise.future
        except asyncio.CancelledError:
            self.waiting.remove(caller)
            self.counts.cancelled += 1
            raise
        except Expired:
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
        return Answer(rows=rows, queue_seconds=total - promise.forward_seconds, forward_seconds=promise.forward_seconds)

    async def serve(self) -> None:
        """Runs batches until closed; when closed, whatever still waits is answered with 503."""
        while not self._closed:
            await self._arrived.wait()
            self._drop_expired()
            jobs = self.waiting.take()
            if jobs:
                await self._answer(jobs)
            else:
                self._arrived.clear()

    def close(self, reason: str) -> None:
        """Answers everyone who waits with 503 and refuses newcomers; a run in progress still answers its callers."""
        self._closed = reason
        for caller in self.waiting.clear():
            self._fail(caller, Unavailable(reason))
        self._arrived.set()

    async def _answer(self, jobs: Sequence[Job]) -> None:
        """Runs `jobs` together; where that fails, each half on its own, until the culprit stands alone."""
        started = self.running_since = self.clock()
        try:
            rows, batch = await self.run([job.tokens for job in jobs])
            answered = list(zip(jobs, rows, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever a run raises, its callers are told and the loop goes on
            await self._split(jobs, error)
        else:
            ended = self.last_answer = self.clock()
            self._deliver(answered, ran=ended - started)
            waited = started - min(job.caller.arrived for job in jobs)
            self._learn(BatchReport(sequences=len(jobs), tokens=batch.tokens, slots=batch.slots, waited_seconds=waited, ran_seconds=ended - started))
        finally:
            self.running_since = None

    async def _split(self, jobs: Sequence[Job], error: Exception) -> None:
        wanted = [job for job in jobs if job.caller in self._promises]
        if len(jobs) == 1:
            for job in wanted:
                message = error.message if isinstance(error, ServiceError) else f"the model failed: {error}"
                self._fail(job.caller, RunFailed(message, index=job.index))
            return
        half = len(wanted) // 2
        for part in (wanted[:half], wanted[half:]):
            if part:
                await self._answer(part)

    def _deliver(self, answered: Sequence[tuple[Job, Row]], *, ran: float) -> None:
        for caller in {job.caller for job, _ in answered}:
            if caller in self._promises:
                self._promises[caller].forward_seconds += ran
        for job, row in answered:
            caller = job.caller
            caller.rows[job.index] = row
            caller.answered += 1
            if caller.answered == len(caller.work) and caller in self._promises:
                self._settle(self._promises[caller].future)

    def _learn(self, report: BatchReport) -> None:
        rate = report.tokens / max(report.ran_seconds, 1e-9)
        if report.tokens * 2 >= self.waiting.token_budget:  # a small batch says nothing of the full rate
            self.waiting.tokens_per_second += NEWEST * (rate - self.waiting.tokens_per_second)
        self.report(report)

    def _fail(self, caller: Caller, error: ServiceError) -> None:
        self.waiting.remove(caller)
        if caller in self._promises:
            self._settle(self._promises[caller].future, error)

    def _drop_expired(self) -> None:
        for caller in self.waiting.expired(self.clock()):
            ran = f"{caller.left} of {len(caller.work)} inputs had left the line" if caller.left else "nothing of it ran"
            self._fail(caller, Expired(f"the deadline passed after {self.clock() - caller.arrived:.3f} s in the line; {ran}"))

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


def totals(counts: Counts) -> dict[str, int]:
    return asdict(counts)
