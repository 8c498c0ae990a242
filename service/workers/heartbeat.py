"""A sign of life: a process writes into a pipe for as long as its loop turns, and whoever started it listens.

It is missed only after it was heard, because loading may hold the interpreter for long. Silence is counted in the listener's own turns:
a machine that was suspended, or a container that was paused, misses nobody.
"""

import asyncio
import os
from contextlib import suppress

BEAT_SECONDS = 0.5
MISSED = 10  # beats in a row: who is not heard for so long does not come back


async def send_heartbeats(pulse: int) -> None:
    """Until cancelled, into the pipe whose file descriptor is `pulse`. Raises OSError where nobody can hear it any more."""
    while True:
        with suppress(BlockingIOError):  # full: nobody has listened for hours
            os.write(pulse, b".")
        await asyncio.sleep(BEAT_SECONDS)


async def wait_for_loss(pulse: int) -> None:
    """Ends when the one at the other end was heard and then no more. What `pulse` holds already is of another life."""
    _heard(pulse)
    missed = -1  # it was never heard
    while missed < MISSED:
        await asyncio.sleep(BEAT_SECONDS)
        missed = 0 if _heard(pulse) else missed + (missed >= 0)


def pipe() -> tuple[int, int]:
    """The listener's end and the other's. Neither blocks."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _heard(pulse: int) -> bool:
    try:
        return bool(os.read(pulse, 2**16))
    except BlockingIOError:
        return False
