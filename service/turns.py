"""The event loop, and long work on it: in turns with everything else that is ready there."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")
TURN_SECONDS = 0.002  # of one request; a turn of the loop costs 30 us, so 2 % of the work


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: the engine's own work for a single text takes 21 us, not 25."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


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
