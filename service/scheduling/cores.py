"""How batches share the device: one by one, a core each, or a long sequence on all cores."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import chain, islice

from .queue import RequestQueue
from .request import WHOLE_BUDGET, Selection

MIN_TOKENS_PER_CORE = 64  # below, all cores together on a batch are faster than a core on each of several batches
LONG_TOKENS = 2 * MIN_TOKENS_PER_CORE  # shorter sequences gain nothing by all cores
MAX_LOOKED_AT = 256  # sequences; behind so many, the other cores have work beside a long sequence
ALL_CORES_EFFICIENCY = 0.9  # of a sequence on all cores, against as many cores with a sequence each (BERT-base, int8)
WORTH = 0.95  # long sequences get all cores if the queue is done within this share of the time


@dataclass(frozen=True, slots=True)
class Concurrency:
    """`per_core`: each batch runs on a core of its own, or alone on all of them.

    Otherwise a single batch runs at a time, and the others in flight are prepared and wait for the device.
    """

    max_in_flight: int = 1  # batches
    per_core: bool = False

    @property
    def side_by_side(self) -> int:
        """How many batches run at the same time at most."""
        return self.max_in_flight if self.per_core else 1

    def tokens_for_one(self, queued_tokens: int, *, in_flight: int, budget: int) -> int:
        """With per-core sessions: tokens of the next batch, so that all free cores end at the same time.

        Each core gets as many batches as its share needs at `budget` tokens at most, and these are of the same size.
        """
        share = -(-queued_tokens // (self.max_in_flight - in_flight))  # rounded up, as the next two
        batches = -(-share // budget)
        return max(MIN_TOKENS_PER_CORE, -(-share // batches))


SERIAL = Concurrency()


@dataclass(slots=True, eq=False)
class CoreSharing:
    """Decides on long sequences when no batch runs; any arrival revokes the decision.

    On an idle service the short sequences run first, each on a core; then the long sequence runs on all cores.
    """

    concurrency: Concurrency
    queue: RequestQueue
    _last_arrival: float = float("-inf")  # seconds: the arrival of the newest request at the last decision
    _decided_at: int = -1  # the newest request when long sequences were to get all cores
    _short_tokens: int = 0  # of a batch of short sequences before them; 0: there are none

    def next(self, in_flight: int) -> Selection | None:
        """What the next batch may take beside `in_flight` others; None: nothing, until these have ended."""
        if in_flight and self._decided_at == self.queue.last_number:
            return self._short_ones()
        tokens = self.queue.tokens
        quiet_since, self._last_arrival = self._last_arrival, self.queue.last_arrival
        if tokens <= MIN_TOKENS_PER_CORE:  # so few are not shared
            return WHOLE_BUDGET
        if not in_flight and (selection := self._for_long_sequences(quiet_since)):
            return selection
        return Selection(tokens=self._tokens_for_one(tokens, in_flight))

    def _tokens_for_one(self, queued_tokens: int, in_flight: int) -> int:
        return self.concurrency.tokens_for_one(queued_tokens, in_flight=in_flight, budget=self.queue.token_budget)

    def _for_long_sequences(self, quiet_since: float) -> Selection | None:
        """The short sequences before the first long one, or this; None if each core is to take some of them."""
        was_decided, self._decided_at = self._decided_at == self.queue.last_number, -1
        requests, cores = self.queue.waiting, self.concurrency.max_in_flight
        lengths = list(islice(chain.from_iterable(one.next_lengths for one in requests), MAX_LOOKED_AT + 1))
        quiet_seconds = next(iter(requests)).arrived - quiet_since
        arrive_often = quiet_seconds * self.queue.tokens_per_second < max(lengths, default=0)
        many = len(lengths) > MAX_LOOKED_AT or any(one.left for one in requests)
        if many or (arrive_often and not was_decided) or not all_cores_pay(lengths, cores):
            return None
        self._decided_at = self.queue.last_number
        if short := [length for length in lengths if length < LONG_TOKENS]:
            self._short_tokens = self._tokens_for_one(sum(short), 0)
            if selection := self._short_ones():
                return selection
        return next((Selection(first=one, all_cores=True) for one in requests if any(one.next_lengths)), None)

    def _short_ones(self) -> Selection | None:
        """A batch that begins with a short sequence; None if no request has a short sequence next."""
        short = [one for one in self.queue.waiting if 0 < next(one.next_lengths, 0) < LONG_TOKENS]
        first = min(short, key=lambda one: (one.virtual_finish, one.number), default=None)
        return None if first is None else Selection(tokens=self._short_tokens, first=first)


def all_cores_pay(lengths: Sequence[int], cores: int) -> bool:
    """Whether sequences of these `lengths` are done sooner if some of the longest run on all cores, one by one."""
    ordered = sorted(lengths, reverse=True)
    most = WORTH * _last_end(ordered, cores)
    alone = 0.0
    for i, length in enumerate(ordered[:cores]):
        alone += length / (cores * ALL_CORES_EFFICIENCY)
        if length < LONG_TOKENS or alone >= most:
            return False
        if alone + _last_end(ordered[i + 1 :], cores) < most:
            return True
    return False


def _last_end(lengths: Sequence[int], cores: int) -> int:
    """When the last sequence has ended, in tokens, if a free core takes the shortest that is left, as the queue does.

    `lengths` are in descending order.
    """
    ends = [0] * cores
    for length in reversed(lengths):
        heapreplace(ends, ends[0] + length)
    return max(ends)
