"""A request from its admission to its answer, and the parts of a batch."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import InferenceFailed, ServiceError
from packbert.service.trace_context import TRACEPARENT


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Queued or running. Its sequences are dispatched in order, a few per batch; `rows` fills up in any order.

    It may be admitted before all its sequences exist: `missing` is the expected number; the last append sets it to 0.
    """

    work: list[Tokens]
    arrived: float  # seconds
    deadline: float
    exclusive: bool = False  # dispatched in a batch of its own
    missing: int = 0  # sequences that are expected to be appended still; 0: it has all of them
    reserved: int = 0  # their expected tokens; at least 1 while any is missing
    dispatched: int = 0  # sequences
    answered: int = 0  # sequences
    number: int = 0  # set on admission: 1 for the first request of the queue
    finish: float = -math.inf  # in virtual time, set on admission; see FairOrder
    in_order: bool = False  # the queue's order has an entry of it
    forward_seconds: float = 0.0  # of the runs that it took part in; runs side by side count once
    forward_until: float = -math.inf  # when the last of them ended
    trace: str = field(default_factory=TRACEPARENT.get)  # the traceparent of its span; empty without traces
    lengths: list[int] = field(init=False)  # tokens of each sequence
    size: int = field(init=False)  # tokens of all sequences, as expected on admission
    queued_tokens: int = field(init=False)  # of the sequences that have not been dispatched
    rows: list[Row] = field(init=False)  # empty until computed
    future: asyncio.Future[None] = field(init=False)  # set on admission by the batcher; done when the request has ended
    timer: asyncio.TimerHandle = field(init=False)  # likewise; of its deadline

    def __post_init__(self) -> None:
        self.lengths = [len(tokens.ids) for tokens in self.work]
        self.queued_tokens = sum(self.lengths)
        self.size = self.queued_tokens + self.reserved
        self.rows = [{}] * len(self.lengths)

    @property
    def tokens(self) -> int:
        """Of the sequences that it has, and those that are expected."""
        return sum(self.lengths) + self.reserved

    @property
    def next_length(self) -> int:
        """Tokens of the sequence that is dispatched next; 0 where none is there."""
        return self.lengths[self.dispatched] if self.dispatched < len(self.lengths) else 0

    @property
    def unserved(self) -> int:
        """Tokens that have not been dispatched, also of the sequences that are expected."""
        return self.queued_tokens + self.reserved

    @property
    def dispatched_all(self) -> bool:
        return not self.queued_tokens and not self.missing

    def append(self, work: Sequence[Tokens], reserved: int) -> None:
        """The next of the missing sequences; `reserved` tokens are expected of those after them: 0 after the last."""
        lengths = [len(tokens.ids) for tokens in work]
        self.work += work
        self.lengths += lengths
        self.rows += [{}] * len(lengths)
        self.queued_tokens += sum(lengths)
        self.missing = max(1, self.missing - len(lengths)) if reserved else 0
        self.reserved = reserved

    def dispatch(self, room: int, *, always_one: bool) -> "list[SequenceJob]":
        """The next sequences that fit into `room` tokens; `always_one`: the first one, however long."""
        jobs: list[SequenceJob] = []
        lengths = self.lengths
        while self.dispatched < len(lengths):
            length = lengths[self.dispatched]
            if length > room and (jobs or not always_one):
                break
            jobs.append((self, self.dispatched))
            self.dispatched += 1
            self.queued_tokens -= length
            room -= length
        return jobs


SequenceJob = tuple[QueuedRequest, int]  # one sequence in a run: its request and its index there


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Share:
    """What the next batch takes of the queue: the next sequence of `first`, and then what fits the rest of `room`."""

    room: int = 0  # tokens; 0: as many as the token budget
    first: QueuedRequest | None = None  # has a queued sequence; None: the first request in the queue's order
    all_cores: bool = False  # the batch is `first`'s next sequence alone


WHOLE_BUDGET = Share()


@dataclass(slots=True, eq=False)
class NextBatch:
    room: int  # tokens that still fit
    jobs: list[SequenceJob] = field(default_factory=list)
    expired: list[QueuedRequest] = field(default_factory=list)  # taken out of the queue: their deadlines have passed


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
    """A row per sequence, None where the answer is not finite. `all_cores`: no other batch is running or queued."""

    def __call__(
        self, sequences: Sequence[Tokens], *, all_cores: bool
    ) -> Awaitable[tuple[Sequence[Row | None], Batch]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    rows: list[Row]  # one per sequence, in the order of the request
    queue_seconds: float
    forward_seconds: float  # of the runs that this request took part in


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInParts:
    """A request that was admitted before its sequences were known: they run while later ones are still made.

    `append` sequences until the last and `finish`, or `withdraw`.
    """

    ended: "asyncio.Future[Any]"  # done as soon as the request has ended, also where it failed before `finish`
    append: Callable[[Sequence[Tokens], int], None]  # and the expected tokens of those after them; 0: they are the last
    finish: Callable[[], Awaitable[InferenceResult]]  # raises what `submit` raises
    withdraw: Callable[[], None]
