"""The bytes that all connections of a process hold together: bodies until their requests end, and answers until their
clients have read them. Knows no HTTP."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from model_export.artifact.cpu import trim_heap
from service.errors import BuffersFull

UNCOUNTED_BYTES = 2**14  # of a body: a small request is never refused for the bytes of others, and costs no count
RETRY_SECONDS = 1.0
TRIM_SECONDS = 1.0  # after the last counted byte; while requests follow each other, freed memory is used again


class Sender(Protocol):
    """A connection whose answer waits for its client."""

    def abort_response(self) -> None: ...


def _trim() -> None:
    """On a thread: it takes milliseconds, in which other threads only wait if they allocate."""
    asyncio.get_running_loop().run_in_executor(None, trim_heap)


class BufferedBytes:
    """Bodies and answers are bounded by `most` bytes each."""

    def __init__(self, most: int = 2**62, on_idle: Callable[[], None] = _trim) -> None:
        self.most, self._on_idle = most, on_idle
        self.bodies = 0
        self.unsent: dict[Sender, int] = {}  # in the order in which they began to wait
        self._timer: asyncio.TimerHandle | None = None

    def check_room(self, size: int) -> None:
        """Raises BuffersFull where `size` bytes more of bodies would be over the bound."""
        if self.bodies + size > self.most:
            held = f"this server holds {self.bodies} bytes of requests, and takes at most {self.most}"
            raise BuffersFull(f"{held} (BERT_MAX_BUFFERED_BYTES): retry later", retry_after=RETRY_SECONDS)

    def hold(self, size: int) -> None:
        """Counts bytes of a body. Raises BuffersFull, and then counts none of them."""
        self.check_room(size)
        self.bodies += size

    def release(self, size: int) -> None:
        self.bodies -= size
        self._trim_when_idle()

    def wait_for_reader(self, sender: Sender, size: int) -> None:
        """`size` bytes of an answer wait for their client; 0: none any more. Over the bound, the connections that have
        waited for the longest are aborted."""
        if size:
            self.unsent[sender] = size
        elif self.unsent.pop(sender, 0):
            self._trim_when_idle()
        while len(self.unsent) > 1 and sum(self.unsent.values()) > self.most:
            slowest = next(iter(self.unsent))
            del self.unsent[slowest]
            slowest.abort_response()

    def _trim_when_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        idle = not self.bodies and not self.unsent
        self._timer = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._on_idle) if idle else None
