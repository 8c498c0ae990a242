"""The order in which requests are served: the Fair Sojourn Protocol (E. Friedman, S. Henderson, SIGMETRICS 2003).

Plain arithmetic in tokens, without a clock.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush

BUCKETS_PER_MINIMUM = 8  # how finely the estimate of what is ahead separates the times when requests finish


@dataclass(slots=True, kw_only=True, eq=False)
class FairOrder:
    """Requests in the order in which they would finish if all of them shared the device equally (processor sharing).

    Served in that order, each finishes no later than under equal sharing, and a request of its own size or more that
    arrives later never comes before it. `cost` is a request's size, or `minimum_cost` if that is more: so requests up
    to that size are served first come, first served. What is unserved of all requests costs the same here and under
    equal sharing. O(log n) a request.
    """

    minimum_cost: int  # tokens
    virtual_time: float = 0.0  # the cost that equal sharing has served of each unfinished request since `clear`
    unserved: int = 0  # tokens of all requests
    _finishes: dict[int, float] = field(default_factory=dict)  # by number: when equal sharing would finish a request
    _heap: list[tuple[float, int]] = field(default_factory=list)  # of those, and of former requests
    _buckets: dict[int, list[int]] = field(default_factory=dict)  # tokens and cost, by finish divided by the bucket

    def cost(self, size: int) -> int:
        return max(size, self.minimum_cost)

    def join(self, number: int, size: int) -> float:
        """When the new request `number` of `size` tokens finishes, in virtual time; the order is by this."""
        cost = self.cost(size)
        finish = self._finishes[number] = self.virtual_time + cost
        heappush(self._heap, (finish, number))
        self._count(finish, size, cost)
        return finish

    def serve(self, finish: float, tokens: int, size: int, *, last: bool) -> None:
        """`tokens` of a request of `size` are served; `last`: these are its last."""
        cost = tokens + max(0, self.minimum_cost - size) if last else tokens
        self._count(finish, -tokens, -cost)
        self._serve_equally(cost)

    def leave(self, number: int, finish: float, tokens: int, size: int) -> None:
        """`tokens` of request `number` will not be served; what it was served before still counts."""
        unserved = tokens + max(0, self.minimum_cost - size)
        self._count(finish, -tokens, -unserved)
        self._change_remaining(number, -unserved)

    def expect(self, number: int, finish: float, size: int, unserved: int, more: int) -> float:
        """When request `number` finishes, if `more` tokens than `unserved` are expected of it now.

        It joined with `size` tokens; `more` may be negative.
        """
        extra = max(0, self.minimum_cost - size)
        self._count(finish, -unserved, -unserved - extra)
        self._change_remaining(number, more)
        moved = self._finishes.get(number, self.virtual_time)
        self._count(moved, unserved + more, unserved + more + extra)
        return moved

    def clear(self) -> None:
        """Nothing is queued."""
        self.virtual_time, self.unserved = 0.0, 0
        self._finishes.clear()
        self._heap.clear()
        self._buckets.clear()

    def ahead(self, size: int) -> int:
        """Tokens that are served before a new request of `size` tokens; a few too many rather than too few."""
        limit = self._bucket(self.virtual_time + self.cost(size))
        return sum([tokens for bucket, (tokens, _) in self._buckets.items() if bucket <= limit])

    def tokens_until(self, size: int, wanted: int, least: float) -> float:
        """So many tokens are served, at least `least`, until at most `wanted` are ahead of a request of `size`.

        Rather too many: meanwhile virtual time goes on by less than the cost of what is served, so requests that finish
        within that time count as well.
        """
        finish = self.virtual_time + self.cost(size) + least + self.minimum_cost  # the last batch may end after that
        tokens, cost = -1, 0
        while True:
            limit, before = self._bucket(finish + cost), tokens
            reached = [unserved for bucket, unserved in self._buckets.items() if bucket <= limit]
            tokens, cost = sum([tokens for tokens, _ in reached]), sum([cost for _, cost in reached])
            if tokens == before:
                return max(least, tokens - wanted)

    @property
    def unfinished(self) -> int:
        """How many requests share the device under equal sharing."""
        return len(self._finishes)

    def _bucket(self, finish: float) -> int:
        return int(finish * BUCKETS_PER_MINIMUM / self.minimum_cost)

    def _count(self, finish: float, tokens: int, cost: int) -> None:
        """Adds to what is unserved of the requests that finish then."""
        bucket = self._bucket(finish)
        self.unserved += tokens
        unserved = self._buckets.setdefault(bucket, [0, 0])
        unserved[0] += tokens
        unserved[1] += cost
        if not unserved[0]:
            del self._buckets[bucket]

    def _change_remaining(self, number: int, cost: int) -> None:
        """Changes the request's remaining cost under equal sharing by `cost`.

        If equal sharing has served more than is left, the surplus is shared among the others.
        """
        now = self.virtual_time
        shared = max(0.0, self._finishes.get(number, now) - now) + cost  # what equal sharing would still have to serve
        if shared > 0:
            self._finishes[number] = now + shared
            heappush(self._heap, (now + shared, number))
        else:
            self._finishes.pop(number, None)
            self._serve_equally(-shared)

    def _serve_equally(self, cost: float) -> None:
        """Lets the unfinished requests share `cost` equally."""
        heap, finishes = self._heap, self._finishes
        while heap and cost > 0:
            finish, number = heap[0]
            if finishes.get(number) != finish:
                heappop(heap)
                continue
            needed = (finish - self.virtual_time) * len(finishes)
            if needed > cost:
                self.virtual_time += cost / len(finishes)
                return
            heappop(heap)
            del finishes[number]
            self.virtual_time = max(self.virtual_time, finish)
            cost -= max(0.0, needed)
