"""A request from its admission to its answer: its place, its chunks and its deadline; and the parts of a batch."""

import asyncio
import math
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

from packbert.model_export.artifact.batch import Batch, Row, Tokens

from ..errors import ServiceError
from ..turns import TRACEPARENT

S = TypeVar("S", bound=Tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedModel:
    """A model as the queue sees it, which counts tokens of the service's first model: `cost`.

    A batch has sequences of a single model.
    """

    scale: float = 1.0  # tokens that the first model computes in the time of a token of this model
    budget: float = math.inf  # of a batch, in cost
    window: int = 2**62  # tokens of a request that may be sent and have no rows yet
    in_memory: bool = True  # otherwise its requests are set aside until it is loaded
    aside: int = 0  # of these requests

    def cost(self, tokens: int) -> int:
        return tokens if self.scale == 1.0 else max(1, round(tokens * self.scale))


FIRST_MODEL = QueuedModel()


@dataclass(slots=True, eq=False)
class Chunk(Generic[S]):
    """The next sequences of a request, at most a batch or two, and their rows."""

    work: Sequence[S]
    owners: Sequence[int] = ()  # the input of each sequence
    left: int = 0  # tokens expected of the chunks after it; 0: it is the last
    needs_rows: bool = False  # its maker goes on with all rows that it has not got yet
    tokens: int = field(init=False)
    lengths: list[int] = field(init=False)  # tokens of each sequence; from `Request.add` on their cost
    request: "Request" = field(init=False)  # set when it is sent, as all below
    first: int = field(init=False)  # index of its first sequence in the request
    rows: list[Row] = field(init=False)  # of each sequence, empty until computed
    missing: int = field(init=False)  # rows
    done: "asyncio.Future[None]" = field(init=False)  # all rows are there, or the request has failed
    dispatched: int = 0  # sequences

    def __post_init__(self) -> None:
        self.lengths = [len(one.ids) for one in self.work]
        self.tokens = sum(self.lengths)


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request's place in the order of the queue. Its chunks are dispatched in turn, a few sequences per batch."""

    arrived: float  # seconds
    deadline: float
    tokens: int  # of all chunks, as expected on admission
    inputs: int = 1  # sequences of all chunks, likewise
    model: QueuedModel = FIRST_MODEL
    exclusive: bool = False  # dispatched in a batch of its own
    number: int = 0  # set on admission: 1 for the first request of its queue
    virtual_finish: float = -math.inf  # set on admission; see FairOrder
    in_order: bool = False  # the queue's order has an entry of it
    aside: bool = False  # taken out of the order until its model is loaded
    queued: int = 0  # cost of the sequences that are sent and not dispatched
    sent: int = 0  # sequences
    queue_seconds: float = 0.0  # set when it has ended
    forward_seconds: float = 0.0  # of the runs that it took part in; runs side by side count once
    forward_until: float = -math.inf  # when the last of them ended
    error: ServiceError | None = None  # what has ended it
    trace: str = field(default_factory=TRACEPARENT.get)  # the traceparent of its span; empty without traces
    chunks: list[Chunk[Any]] = field(default_factory=list)  # with sequences that are not dispatched
    unanswered: list[Chunk[Any]] = field(default_factory=list)  # sent, and not all of their rows are there
    size: int = field(init=False)  # cost of all chunks, as expected on admission
    left: int = field(init=False)  # cost of the chunks that are not sent; 0: all are
    held: int = field(init=False)  # tokens that it may have in the queue at a time from now on
    timer: asyncio.TimerHandle = field(init=False)  # ends the request at its deadline

    def __post_init__(self) -> None:
        self.size = self.left = self.model.cost(self.tokens) or 1
        self.held = min(self.tokens, self.model.window)

    def add(self, chunk: Chunk[Any]) -> None:
        """Takes the next chunk."""
        model, chunk.request, chunk.first = self.model, self, self.sent
        chunk.missing = count = len(chunk.work)
        chunk.rows = [{}] * count
        self.left = chunk.left and model.cost(chunk.left)
        if not count:
            return
        if model.scale != 1.0:
            chunk.lengths = [model.cost(length) for length in chunk.lengths]
        self.sent += count
        self.queued += sum(chunk.lengths)
        self.chunks.append(chunk)
        self.unanswered.append(chunk)

    def put(self, chunk: Chunk[Any], index: int, row: Row) -> None:
        """Takes the row of a chunk's sequence."""
        chunk.rows[index] = row
        chunk.missing -= 1
        if not chunk.missing and not chunk.done.done():
            self.unanswered.remove(chunk)
            chunk.done.set_result(None)

    def fail(self, error: ServiceError) -> None:
        """Ends the request with `error`, unless it has failed already."""
        if self.error is None:
            self.error = error
            for chunk in self.unanswered:
                if not chunk.done.done():
                    chunk.done.set_result(None)

    @property
    def unserved(self) -> int:
        """Cost of what has not been dispatched, also of the chunks that are expected."""
        return self.queued + self.left

    @property
    def dispatched(self) -> int:
        """Number of sequences."""
        return self.sent - sum(len(chunk.lengths) - chunk.dispatched for chunk in self.chunks)

    @property
    def next_lengths(self) -> Iterator[int]:
        """The cost of each sequence that can be dispatched, in order."""
        chunks = () if self.aside else self.chunks
        return chain.from_iterable(islice(chunk.lengths, chunk.dispatched, None) for chunk in chunks)

    def dispatch(self, most: int, *, always_one: bool) -> "list[SequenceJob]":
        """The next sequences that fit into the cost `most`; `always_one`: also the first sequence, however long."""
        jobs: list[SequenceJob] = []
        while self.chunks:
            chunk = self.chunks[0]
            for at in range(chunk.dispatched, len(chunk.lengths)):
                length = chunk.lengths[at]
                if length > most and (jobs or not always_one):
                    return jobs
                jobs.append((chunk, at))
                chunk.dispatched += 1
                self.queued -= length
                most -= length
            self.chunks.pop(0)
        return jobs


SequenceJob = tuple[Chunk[Any], int]  # a sequence in a run: its chunk and its index there


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
    model: QueuedModel | None = None  # that of its first request
    jobs: list[SequenceJob] = field(default_factory=list)
    expired: list[Request] = field(default_factory=list)  # taken out of the queue: their deadlines have passed
    to_load: list[QueuedModel] = field(default_factory=list)  # requests wait for them


class RunBatch(Protocol):
    """A row for each sequence, None if its answer is not finite. `all_cores`: no other batch is running."""

    def __call__(
        self, sequences: Sequence[Tokens], *, all_cores: bool
    ) -> Awaitable[tuple[Sequence[Row | None], Batch]]: ...
