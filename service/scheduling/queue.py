"""The line: who is admitted, who leaves next, whose time is over. Plain synchronous code without a clock, a loop or a model."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from model_export.artifact.batch import Row, Tokens
from service.errors import Overloaded, TooLarge

QUANTUM = 64  # tokens that a caller may send at each of its turns; what it sends beyond, it pays with its next turns
TURNS = 4  # callers that find room in a batch even when everyone sends as much as it may
LATELY = 32  # batches
LOOK_PAST = 32  # callers whose next sequence does not fit the rest of a batch and are looked past before it leaves
BULK_SHARE = 0.9  # of the line for requests larger than a batch: the rest stays free for small ones
GOLDEN = 0.618  # its multiples spread evenly: refused callers do not all come back at once


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in the line. Its sequences leave in order, a few at a turn; `rows` fills up in any order."""

    work: Sequence[Tokens]
    arrived: float  # seconds
    deadline: float
    alone: bool = False  # leaves in a batch of its own
    left: int = 0  # sequences that have gone into a batch
    answered: int = 0
    deficit: int = 0  # tokens; see QUANTUM
    size: int = field(init=False)  # tokens of all its sequences
    waiting_tokens: int = field(init=False)  # of the sequences that have not left
    longest: int = field(init=False)  # tokens of the longest sequence
    rows: list[Row | None] = field(init=False)

    def __post_init__(self) -> None:
        lengths = [len(tokens) for tokens in self.work]
        self.size = self.waiting_tokens = sum(lengths)
        self.longest = max(lengths)
        self.rows = [None] * len(self.work)

    @property
    def next_length(self) -> int:
        """Tokens of the sequence that leaves next; 0 when all have left."""
        return len(self.work[self.left]) if self.left < len(self.work) else 0


@dataclass(frozen=True, slots=True)
class SequenceJob:
    """One sequence of one caller, on its way through a run."""

    caller: QueuedRequest
    index: int

    @property
    def tokens(self) -> Tokens:
        return self.caller.work[self.index]


@dataclass(frozen=True, slots=True)
class NextBatch:
    """What `take` took out of the line: the next batch, and callers whose deadline had passed."""

    jobs: Sequence[SequenceJob]
    late: Sequence[QueuedRequest]


@dataclass(slots=True, kw_only=True)
class RequestQueue:
    """Callers in turn. `tokens` is always the sum over the callers in the ring of what has not left yet."""

    token_budget: int
    max_tokens: int
    max_wait_seconds: float
    tokens_per_second: float  # measured; estimates the wait
    quantum: int = field(init=False)
    tokens: int = 0
    _round: int = 0  # tokens that leave before a newcomer's first turn: the sum of the callers' turns
    _lasting: int = 0  # at most so many tokens leave in the round after that
    _sizes: list[tuple[int, int]] = field(
        default_factory=lambda: [(0, 0)] * 64
    )  # callers and their tokens, by the bits of what each still has
    _batches_since_small: int = 10**6
    _refusals: int = 0
    _ring: OrderedDict[QueuedRequest, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.quantum = max(1, min(QUANTUM, self.token_budget // TURNS))

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def fills_a_batch(self) -> bool:
        """Whether the next batch would not grow by waiting."""
        return self.tokens >= self.token_budget

    def wait_seconds(self, size: int) -> float:
        """Estimated time that a request of `size` tokens would wait for others: whoever has more to do counts only with as much as it."""
        return max(self._round, self._ahead(size)) / self.tokens_per_second

    @property
    def oldest(self) -> float | None:
        """When the caller that waits longest arrived."""
        return min((caller.arrived for caller in self._ring), default=None)

    def admit(self, caller: QueuedRequest) -> None:
        """Takes the whole request into the line or raises: TooLarge where it could never fit, Overloaded where it does not fit now."""
        size = caller.waiting_tokens
        if size > self._room(size):
            limit = f"the line takes at most {self._room(size)} at once (BERT_MAX_WAITING_TOKENS)"
            raise TooLarge(f"the request has {size} tokens; {limit}: send it in parts")
        self.check_admission(size, patience=max(0.0, caller.deadline - caller.arrived))
        self._join(caller)

    def check_admission(self, size: int, *, patience: float = math.inf) -> None:
        """Raises Overloaded where `size` tokens do not fit now, or would wait too long: cheap, so also for a guess before anything is tokenized."""
        over, patience = self.tokens + size - self._room(size), min(patience, self.max_wait_seconds)
        wait = self.wait_seconds(size)
        if over <= 0 and wait <= patience:
            return
        seconds = (
            max(over / self.tokens_per_second, self._seconds_until(size, patience))
            + self.token_budget / self.tokens_per_second
        )
        self._refusals += 1
        retry = max(1.0, seconds) * (1.0 + self._refusals * GOLDEN % 1.0 / 2)
        raise Overloaded(
            f"{self.tokens} tokens are waiting, {wait:.1f} s of them before this request; try again in {retry:.0f} s",
            retry_after=retry,
        )

    def admit_exclusive(self, caller: QueuedRequest) -> None:
        """Past everyone and every limit, in a batch of its own: for the canary, whose fate must be nobody else's."""
        caller.alone = True
        self._join_first(caller)

    def next_batch(self, now: float, share: int | None = None) -> NextBatch:
        """The next batch: callers in turn until the budget, or a smaller `share` in tokens, is full. Empty when nobody waits.

        At its turn a caller sends until its credit is used up: round robin in tokens, not in texts. The first in turn always
        leaves, however long; one that does not fit the rest keeps its turn for the next batch, so that nothing starves and
        nothing short waits behind it. While somebody small has been here lately, who came with more than a batch fills half of one,
        no more: the next small one neither waits for a full batch to end nor shares one.
        """
        jobs: list[SequenceJob] = []
        late: list[QueuedRequest] = []
        passed: list[QueuedRequest] = []
        room = self.token_budget if share is None else min(share, self.token_budget)
        kept = room // 2
        self._batches_since_small += 1
        while self._ring and room > 0 and len(passed) < LOOK_PAST:
            caller = next(iter(self._ring))
            self._leave(caller)
            if caller.deadline <= now:
                late.append(caller)
                continue
            if caller.alone:
                return NextBatch([_send(caller) for _ in caller.work], late)
            if caller.deficit <= 0:
                caller.deficit += self.quantum
            bulk = caller.size > self.token_budget  # to its end: the rest of a bulk request is nobody small
            reserved = kept if bulk and self._batches_since_small < LATELY else 0
            while caller.deficit > 0 and caller.next_length > 0 and (not jobs or caller.next_length <= room - reserved):
                room -= caller.next_length
                jobs.append(_send(caller))
            if not bulk:
                self._batches_since_small = 0
            if not caller.next_length:
                continue
            if caller.deficit > 0:
                passed.append(caller)
            else:
                self._join(caller)
        for caller in reversed(passed):
            self._join_first(caller)
        return NextBatch(jobs, late)

    def remove(self, caller: QueuedRequest) -> bool:
        """Drops what a caller still has in the line; False where nothing was left of it."""
        if caller not in self._ring:
            return False
        self._leave(caller)
        return True

    def clear(self) -> list[QueuedRequest]:
        """Removes and returns everyone."""
        everyone = list(self._ring)
        for caller in everyone:
            self._leave(caller)
        return everyone

    def shrink(self, tokens: int) -> None:
        """A batch of `tokens` did not fit the memory: from now on at most half of it."""
        self.token_budget = max(1, min(self.token_budget, tokens // 2))

    def _join(self, caller: QueuedRequest) -> None:
        self._ring[caller] = None
        self._count(caller, 1)

    def _join_first(self, caller: QueuedRequest) -> None:
        self._join(caller)
        self._ring.move_to_end(caller, last=False)

    def _leave(self, caller: QueuedRequest) -> None:
        del self._ring[caller]
        self._count(caller, -1)

    def _count(self, caller: QueuedRequest, sign: int) -> None:
        turn = min(
            caller.waiting_tokens, max(self.quantum, caller.longest)
        )  # at most: so the wait never grows while work is done
        self.tokens += sign * caller.waiting_tokens
        self._round += sign * turn
        self._lasting += sign * min(caller.waiting_tokens - turn, self.quantum + caller.longest)
        count, tokens = self._sizes[caller.waiting_tokens.bit_length()]
        self._sizes[caller.waiting_tokens.bit_length()] = count + sign, tokens + sign * caller.waiting_tokens

    def _room(self, size: int) -> int:
        return self.max_tokens if size <= self.token_budget else int(self.max_tokens * BULK_SHARE)

    def _ahead(self, size: int) -> int:
        """Tokens that leave before `size` tokens that come now have left, as all take turns; at most twice too many, never too few."""
        smaller = self._sizes[: size.bit_length()]
        return sum(tokens for _, tokens in smaller) + size * (len(self._ring) - sum(count for count, _ in smaller))

    def _seconds_until(self, size: int, patience: float) -> float:
        """How long, if nobody else comes, until the wait is down to `patience`: 0 where it is."""
        if self.wait_seconds(size) <= patience:
            return 0.0
        lasting = self._lasting / self.tokens_per_second
        if (
            self._ahead(size) <= self._round and lasting <= patience
        ):  # enough leave for good in this round, while the others have their turn
            return self.wait_seconds(size) + lasting - patience
        return self.tokens / self.tokens_per_second - patience / 2


def _send(caller: QueuedRequest) -> SequenceJob:
    length = caller.next_length
    caller.deficit -= length
    caller.waiting_tokens -= length
    caller.left += 1
    return SequenceJob(caller, caller.left - 1)
