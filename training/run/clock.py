"""Ends a run at a given time, and pauses it while a file exists. Knows nothing of the network."""

import time
from collections.abc import Callable
from pathlib import Path

PAUSE_POLL_SECONDS = 5.0


def place_in_schedule(tokens: int, *, total: int, began: float, until: float | None, now: float) -> int:
    """The tokens that the schedule counts as seen: at least `tokens`, and all of `total` when the time is `until`.

    Times in seconds since the epoch. A run that is slower than planned moves through its schedule by the clock.
    """
    if until is None:
        return tokens
    elapsed = (now - began) / (until - began) if until > began else 1.0
    return max(tokens, int(min(1.0, elapsed) * total))


def wait_while_paused(
    pause: Path | None, *, stopped: Callable[[], bool], sleep: Callable[[float], object] = time.sleep
) -> None:
    """Returns when the file `pause` does not exist, or when `stopped` answers True."""
    while pause is not None and pause.exists() and not stopped():
        sleep(PAUSE_POLL_SECONDS)
