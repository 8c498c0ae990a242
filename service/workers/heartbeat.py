"""Heartbeats: a worker writes to a pipe for as long as its event loop runs, and the supervisor reads from it.

A worker counts as hung only after its first heartbeat, because loading may hold the interpreter lock for long. Silence
is counted in the supervisor's own intervals, so that a suspended machine or a paused container kills no worker.
"""

import asyncio
import os
from contextlib import suppress

INTERVAL_SECONDS = 0.5
MAX_MISSED = 10  # heartbeats in a row; a worker that misses so many is considered hung


async def send_heartbeats(write_end: int) -> None:
    """Until cancelled. Raises OSError where the read end is closed."""
    while True:
        with suppress(BlockingIOError):  # the pipe is full: the supervisor has not read for hours
            os.write(write_end, b".")
        await asyncio.sleep(INTERVAL_SECONDS)


async def wait_for_loss(read_end: int) -> None:
    """Returns when heartbeats have come and then stopped. What the pipe holds at the start is of an earlier process."""
    _drain(read_end)
    missed = -1  # no heartbeat so far
    while missed < MAX_MISSED:
        await asyncio.sleep(INTERVAL_SECONDS)
        missed = 0 if _drain(read_end) else missed + (missed >= 0)


def open_pipe() -> tuple[int, int]:
    """The read end and the write end, both non-blocking."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _drain(read_end: int) -> bool:
    """Whether there was anything to read."""
    try:
        return bool(os.read(read_end, 2**16))
    except BlockingIOError:
        return False
