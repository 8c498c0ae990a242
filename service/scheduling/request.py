"""A request from its admission to its answer, and the parts of a batch."""

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import InferenceFailed, ServiceError
from packbert.service.trace_context import TRACEPARENT


class InferenceQueue(Protocol):
    """Where requests wait for the model: a `Batcher`, or an `EngineClient` for an engine in another process."""

    def check_admission(self, tokens: int) -> None:
        """Raises Overloaded or Unavailable where a request of `tokens` tokens would be refused now."""

    async def rate(self) -> float:
        """Tokens that the device does in a second, as measured."""

    def begin(
        self, work: Sequence[Tokens], *, sequences: int = 0, tokens: int = 0, part: int = 0, timeout_seconds: float
    ) -> "Request":
        """As Batcher.begin."""

    def close(self, reason: str) -> None:
        """Answers requests that wait, and new ones, with 503."""

    def append(self, request: "Request", work: Sequence[Tokens], reserved: int) -> None:
        """As Request.append."""

    def withdraw(self, request: "Request") -> None:
        """As Request.withdraw."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModelCost:
    """What the tokens of a model cost in the queue, which counts tokens of the service's first model.

    A batch has sequences of one model.
    """

    scale: float = 1.0  # tokens that the first model computes in the time of one of this model
    budget: float = math.inf  # of a batch, in the queue's tokens

    def of(self, tokens: int) -> int:
        """The cost of so many tokens."""
        return tokens if self.scale == 1.0 else round(tokens * self.scale)

    def of_each(self, work: Sequence[Tokens]) -> list[int]:
        """The cost of each sequence."""
        lengths = [len(tokens.ids) for tokens in work]
        return lengths if self.scale == 1.0 else [max(1, self.of(length)) for length in lengths]


FIRST_MODEL = ModelCost()


@dataclass(slots=True, eq=False)
class Request:
    """A request from its admission to its answer: `append` sequences to it, then `finish`, or `withdraw`.

    Its sequences are dispatched in order, a few per batch; `rows` fills up in any order. It may be admitted before all
    its sequences exist: `missing` is the expected number; the last append sets it to 0.
    """

    work: list[Tokens]
    arrived: float  # seconds
    deadline: float
    exclusive: bool = False  # dispatched in a batch of its own
    missing: int = 0  # sequences that are expected to be appended still; 0: it has all of them
    reserved: int = 0  # their expected tokens, of a request in parts those that the queue keeps room for
    part: int = 0  # of a request in parts: the most tokens that it has in the queue; 0: it is there as a whole
    later: int = 0  # expected tokens of a request in parts that have no room in the queue yet
    dispatched: int = 0  # sequences
    answered: int = 0  # sequences
    number: int = 0  # set on admission: 1 for the first request of its queue or connection
    virtual_finish: float = -math.inf  # set on admission; see FairOrder
    in_order: bool = False  # the queue's order has an entry of it
    queue_seconds: float = 0.0  # set when it has ended
    forward_seconds: float = 0.0  # of the runs that it took part in; runs side by side count once
    forward_until: float = -math.inf  # when the last of them ended
    trace: str = field(default_factory=TRACEPARENT.get)  # the traceparent of its span; empty without traces
    model: ModelCost = FIRST_MODEL
    lengths: list[int] = field(init=False)  # tokens of each sequence, of the first model
    size: int = field(init=False)  # tokens of all sequences, as expected on admission
    queued_tokens: int = field(init=False)  # of the sequences that have not been dispatched
    rows: list[Row] = field(init=False)  # one for each sequence, empty until computed
    queue: InferenceQueue = field(init=False)  # set on admission, as the next two
    ended: "asyncio.Future[None]" = field(init=False)  # done when the request has ended, however it has
    timer: asyncio.TimerHandle = field(init=False)  # ends the request
    _taken: int = field(default=0, init=False)  # rows that `take_rows` has returned
    _caught_up: "asyncio.Future[None] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.lengths = self.model.of_each(self.work)
        self.queued_tokens = sum(self.lengths)
        self.size = self.queued_tokens + self.reserved
        self.rows = [{}] * len(self.lengths)

    def append(self, work: Sequence[Tokens], reserved: int) -> None:
        """The next sequences; `reserved` tokens are expected of those after them: 0 where they are the last.

        Does nothing where the request has ended, and ends it where it is too large.
        """
        self.queue.append(self, work, reserved)

    async def finish(self) -> "Request":
        """The request itself, with all of its rows, once it has ended. Raises what has ended it: DeadlineExceeded,
        TooLarge, Unavailable or InferenceFailed."""
        try:
            await self.ended
        finally:
            self.queue.withdraw(self)
        return self

    def withdraw(self) -> None:
        """Ends the request. Does nothing where it has ended."""
        self.queue.withdraw(self)

    def measure_wait(self, now: float) -> None:
        """Sets `queue_seconds`, when the request has ended, also of the error that it has ended with."""
        self.queue_seconds = now - self.arrived - self.forward_seconds
        if self.ended.done() and not self.ended.cancelled():
            error = self.ended.exception()
            if isinstance(error, ServiceError):
                error.queue_seconds = self.queue_seconds

    async def next_rows(self) -> list[Row]:
        """Waits as `caught_up`, then as `take_rows`: for a request whose further sequences depend on these rows."""
        await self.caught_up()
        return self.take_rows()

    def caught_up(self) -> "asyncio.Future[None]":
        """Done when all sequences so far have their rows, or the request has ended."""
        if not self.missing or self.ended.done():
            return self.ended
        self._caught_up = asyncio.get_running_loop().create_future()
        if self._taken < len(self.rows) == self.answered:
            self._caught_up.set_result(None)
        return self._caught_up

    def take_rows(self) -> list[Row]:
        """The rows that no call has returned, and lets go of them; none while some are missing.

        Raises what has ended the request.
        """
        if self.ended.done():
            self.ended.result()
        if self.answered < len(self.rows):
            return []
        rows = self.rows[self._taken :]
        self.rows[self._taken :] = [{}] * len(rows)
        self._taken += len(rows)
        return rows

    def advance(self) -> None:
        """Some rows have come: ends the request if they were the last, or wakes what waits for them."""
        if self.answered == len(self.rows):
            if not self.missing:
                self.end()
            else:
                self._wake()

    def end(self, error: ServiceError | None = None) -> None:
        """Does nothing where the request has ended."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        if self._caught_up is not None and not self._caught_up.done():
            self._caught_up.set_result(None)

    @property
    def tokens(self) -> int:
        """Of the sequences that it has, and those that are expected."""
        return sum(self.lengths) + self.reserved + self.later

    @property
    def room(self) -> int:
        """Of a request in parts: the most tokens of the queue, which are of the first model, that it has there."""
        return self.model.of(self.part)

    @property
    def next_length(self) -> int:
        """Tokens of the sequence that is dispatched next; 0 where none is there."""
        return self.lengths[self.dispatched] if self.dispatched < len(self.lengths) else 0

    @property
    def unserved(self) -> int:
        """Tokens in the queue that have not been dispatched, also of the sequences that are expected."""
        return self.queued_tokens + self.reserved

    @property
    def dispatched_all(self) -> bool:
        return not self.queued_tokens and not self.missing

    def extend(self, work: Sequence[Tokens], reserved: int) -> None:
        """Takes the next of the missing sequences: what the queue does on `append`."""
        lengths = self.model.of_each(work)
        self.work += work
        self.lengths += lengths
        self.rows += [{}] * len(lengths)
        self.queued_tokens += sum(lengths)
        self.missing = max(1, self.missing - len(lengths)) if reserved else 0
        self.reserved = min(reserved, max(0, self.room - self.queued_tokens)) if self.part else reserved
        self.later = reserved - self.reserved

    def dispatch(self, max_tokens: int, *, always_one: bool) -> "list[SequenceJob]":
        """The next sequences that fit into `max_tokens`; `always_one`: the first one, however long."""
        jobs: list[SequenceJob] = []
        lengths = self.lengths
        while self.dispatched < len(lengths):
            length = lengths[self.dispatched]
            if length > max_tokens and (jobs or not always_one):
                break
            jobs.append((self, self.dispatched))
            self.dispatched += 1
            self.queued_tokens -= length
            max_tokens -= length
        return jobs


SequenceJob = tuple[Request, int]  # one sequence in a run: its request and its index there


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Selection:
    """What the next batch takes of the queue: the next sequence of `first`, and then what fits the rest of `tokens`."""

    tokens: int = 0  # 0: as many as the token budget
    first: Request | None = None  # has a queued sequence; None: the first request in the queue's order
    all_cores: bool = False  # the batch is `first`'s next sequence alone


WHOLE_BUDGET = Selection()


@dataclass(slots=True, eq=False)
class NextBatch:
    tokens_left: int  # that still fit
    model: ModelCost | None = None  # that of its first request
    jobs: list[SequenceJob] = field(default_factory=list)
    expired: list[Request] = field(default_factory=list)  # taken out of the queue: their deadlines have passed


def check_not_empty(work: Sequence[Tokens], first: int) -> None:
    """Raises InferenceFailed, since no run would end such a request. `first` is the index of the first sequence."""
    if not work:
        raise InferenceFailed("the request has no inputs")
    for index, tokens in enumerate(work, first):
        if not len(tokens.ids):
            raise InferenceFailed("the input has no tokens", index=index)


def halves(jobs: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
    """The first half is last: it is taken first."""
    middle = len(jobs) // 2
    return [half for half in (jobs[middle:], jobs[:middle]) if half]


def run_error(error: Exception, index: int | None) -> InferenceFailed:
    """What a request gets whose run raised `error`, where its sequence `index` is known to be the cause."""
    kind = type(error) if isinstance(error, InferenceFailed) else InferenceFailed
    message = error.message if isinstance(error, ServiceError) else f"the model failed: {type(error).__name__}"
    return kind(message, index=index)


class RunBatch(Protocol):
    """A row per sequence, None where the answer is not finite. `all_cores`: no other batch is running."""

    def __call__(
        self, sequences: Sequence[Tokens], *, all_cores: bool
    ) -> Awaitable[tuple[Sequence[Row | None], Batch]]: ...
