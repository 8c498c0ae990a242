"""Whose texts the tokenizer's thread reads next: one step of one request at a time, fewest characters left first.

Knows requests by their number of characters; knows nothing of texts, tokens or deadlines: a request that is cancelled
leaves at once.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from service.errors import Overloaded

T = TypeVar("T")
SECONDS_PER_CHARACTER = 1e-6  # English text, measured
MAX_UNQUEUED = 2**24  # characters of requests that the queue has not admitted: two of the largest bodies, 10 to 30 s
OLDEST_EVERY = 4  # every fourth step is of the request that came first, so that smaller ones cannot hold it up for ever


@dataclass(slots=True, eq=False)
class Turns:
    """A request's place among those that are tokenized."""

    characters: int  # left
    queued: bool  # admitted by the queue, which counts its tokens
    granted: "asyncio.Future[None] | None" = None  # it waits for its next step


@dataclass(slots=True, eq=False)
class TokenizingScheduler:
    """`enter`, `run` for each step, `leave`; all on one event loop."""

    thread: Executor
    report: Callable[[int, int], None] = lambda requests, characters: None  # called with both sums when they change
    _requests: dict[Turns, None] = field(default_factory=dict)  # in the order of their arrival
    _characters: int = 0
    _unqueued: int = 0  # of those, of requests that the queue has not admitted
    _busy: bool = False
    _steps: int = 0

    @property
    def requests(self) -> int:
        return len(self._requests)

    @property
    def characters(self) -> int:
        """Of the texts in all requests that have not been read."""
        return self._characters

    def enter(self, characters: int, *, queued: bool) -> Turns:
        """Raises Overloaded where too much is waiting that no queue counts; a request alone is always admitted."""
        if not queued and self._unqueued and self._unqueued + characters > MAX_UNQUEUED:
            waiting = (
                f"{self._unqueued} characters of other requests wait for the tokenizer, and this one has {characters}"
            )
            raise Overloaded(
                f"{waiting}; at most {MAX_UNQUEUED} may wait: send it again later",
                retry_after=self._unqueued * SECONDS_PER_CHARACTER,
            )
        turns = Turns(0, queued)
        self._requests[turns] = None
        self._set(turns, characters)
        return turns

    async def run(self, turns: Turns, characters: int, step: Callable[[], T]) -> T:
        """What `step` returns on the thread, once it is this request's turn; `characters` are those still to be read.

        Where it is cancelled during its step, the step ends on the thread before the next one begins.
        """
        self._set(turns, characters)
        if self._busy:
            turns.granted = asyncio.get_running_loop().create_future()
            try:
                await turns.granted
            except asyncio.CancelledError:
                if turns.granted.done() and not turns.granted.cancelled():  # its turn had come
                    self._grant_next()
                raise
            finally:
                turns.granted = None
        self._busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, step)
        finally:
            self._grant_next()

    def leave(self, turns: Turns) -> None:
        self._set(turns, 0)
        del self._requests[turns]
        self.report(len(self._requests), self._characters)

    def _set(self, turns: Turns, characters: int) -> None:
        self._characters += characters - turns.characters
        self._unqueued += 0 if turns.queued else characters - turns.characters
        turns.characters = characters
        self.report(len(self._requests), self._characters)

    def _grant_next(self) -> None:
        """The thread is free: the next step is of the request with the fewest characters left, or of the oldest."""
        waiting = [turns for turns in self._requests if turns.granted is not None and not turns.granted.done()]
        self._busy = bool(waiting)
        if not waiting:
            return
        self._steps += 1
        oldest = self._steps % OLDEST_EVERY == 0
        chosen = waiting[0] if oldest else min(waiting, key=lambda turns: turns.characters)
        if chosen.granted is not None:
            chosen.granted.set_result(None)
