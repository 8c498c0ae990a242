"""The running request: its turns on the event loop, its deadline, and the trace that it belongs to."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from .errors import DeadlineExceeded

T = TypeVar("T")
TURN_SECONDS = 0.002  # of one request; a turn of the loop costs 30 us, so 2 % of the work
SAMPLED = "-01"
# A `traceparent` of W3C Trace Context, with the id of the request's span; empty without traces.
TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; after each TURN_SECONDS of work on them, and of making them, the event loop runs what else is ready.

    A turn is longer by the last item: an item is to take a few milliseconds at most.
    """
    until = time.perf_counter() + TURN_SECONDS
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + TURN_SECONDS


@dataclass(slots=True, eq=False)  # made for each request: a frozen dataclass takes four times as long
class Deadline:
    """The time in which a request is answered."""

    seconds: float
    max_seconds: float = 0.0  # up to which it follows the size of the request; 0: the client has set it
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """Negative when it has passed."""
        return self.started + self.seconds - time.perf_counter()

    async def wait_for(self, awaited: Awaitable[T], when: str) -> T:
        """The result of `awaited`. Raises DeadlineExceeded, which says `when` the deadline passed."""
        try:
            async with asyncio.timeout(self.seconds_left):
                return await awaited
        except TimeoutError:
            raise DeadlineExceeded(f"the deadline passed after {self.seconds:.3f} s, {when}") from None


NO_DEADLINE = Deadline(math.inf)
DEADLINE: ContextVar[Deadline] = ContextVar("deadline", default=NO_DEADLINE)


def current_trace_id() -> str:
    """32 hexadecimal digits; empty without traces."""
    return TRACEPARENT.get()[3:35]


def current_exemplar() -> dict[str, str] | None:
    """The labels of an exemplar; None if the trace is not sampled: there would be none to find."""
    return {"trace_id": current_trace_id()} if TRACEPARENT.get().endswith(SAMPLED) else None
