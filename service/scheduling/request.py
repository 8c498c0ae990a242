"""A request in the queue, the parts of a batch, and the error of a run that failed."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from model_export.artifact.batch import Row, Tokens
from service.errors import InferenceFailed, ServiceError


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Queued or running. Its sequences are dispatched in order, a few per turn; `rows` fills up in any order.

    Sequences that are `missing` when it is admitted are appended later.
    """

    work: list[Tokens]
    arrived: float  # seconds
    deadline: float
    exclusive: bool = False  # dispatched in a batch of its own
    missing: int = 0  # sequences that are still to be appended
    reserved: int = 0  # their expected tokens
    dispatched: int = 0  # sequences
    answered: int = 0  # sequences
    deficit: int = 0  # tokens that it may still dispatch in this turn; see QUANTUM
    forward_seconds: float = 0.0  # of the runs that it took part in; runs side by side count once
    forward_until: float = -math.inf  # when the last of them ended
    lengths: list[int] = field(init=False)  # tokens of each sequence
    size: int = field(init=False)  # tokens of all sequences, as expected on admission
    queued_tokens: int = field(init=False)  # of the sequences that have not been dispatched
    longest: int = field(init=False)  # tokens of the longest sequence
    rows: list[Row] = field(init=False)  # empty until computed
    future: asyncio.Future[None] = field(init=False)  # set on admission by the batcher; done when the request has ended
    timer: asyncio.TimerHandle = field(init=False)  # likewise; of its deadline

    def __post_init__(self) -> None:
        self.lengths = [len(tokens.ids) for tokens in self.work]
        self.queued_tokens = sum(self.lengths)
        self.size = self.queued_tokens + self.reserved
        self.longest = max(self.lengths, default=0)
        self.rows = [{}] * len(self.lengths)

    @property
    def tokens(self) -> int:
        """Of the sequences that it has, and those that are expected."""
        return sum(self.lengths) + self.reserved

    def append(self, work: Sequence[Tokens], reserved: int) -> None:
        """The next of the missing sequences; `reserved` tokens are expected of those after them."""
        lengths = [len(tokens.ids) for tokens in work]
        self.work += work
        self.lengths += lengths
        self.rows += [{}] * len(lengths)
        self.queued_tokens += sum(lengths)
        self.longest = max(self.longest, *lengths)
        self.missing -= len(lengths)
        self.reserved = reserved if self.missing else 0

    def dispatch(self, room: int, *, always_one: bool) -> "list[SequenceJob]":
        """The next sequences that the deficit and `room` tokens allow; `always_one`: the first one, however long."""
        jobs: list[SequenceJob] = []
        while self.deficit > 0 and self.dispatched < len(self.lengths):
            length = self.lengths[self.dispatched]
            if length > room and (jobs or not always_one):
                break
            jobs.append((self, self.dispatched))
            self.dispatched += 1
            self.deficit -= length
            self.queued_tokens -= length
            room -= length
        return jobs


SequenceJob = tuple[QueuedRequest, int]  # one sequence in a run: its request and its index there


def halves(jobs: Sequence[SequenceJob]) -> list[Sequence[SequenceJob]]:
    """The first half is last: it is taken first."""
    middle = len(jobs) // 2
    return [half for half in (jobs[middle:], jobs[:middle]) if half]


def run_error(error: Exception, index: int | None) -> InferenceFailed:
    """What a request gets whose run raised `error`, where its sequence `index` is known to be the culprit."""
    kind = type(error) if isinstance(error, InferenceFailed) else InferenceFailed
    message = error.message if isinstance(error, ServiceError) else f"the model failed: {type(error).__name__}"
    return kind(message, index=index)
