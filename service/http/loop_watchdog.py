"""Ends a process whose event loop hangs; of several workers the supervisor does that, by their heartbeats."""

import asyncio
import os
import sys
import threading
import time
import traceback

STDERR = 2
CHECK_SECONDS = 1.0
MAX_MISSED = 20  # checks in a row
LAST_WORDS_SECONDS = 2.0  # a stderr that nobody reads takes none: it may be what the loop hangs at


def watch_loop(loop: asyncio.AbstractEventLoop, *, check_seconds: float = CHECK_SECONDS) -> None:
    """Starts a thread that ends the process with code 1 if the loop calls nothing back for MAX_MISSED checks.

    Time is counted in checks of its own, so that a stopped process or a suspended machine does not count. The stack of
    each thread goes to stderr. The thread ends when the loop is closed.
    """
    threading.Thread(target=_watch, args=(loop, check_seconds), daemon=True, name="loop-watchdog").start()


def _watch(loop: asyncio.AbstractEventLoop, check_seconds: float) -> None:
    while True:
        time.sleep(check_seconds)
        turned, missed = threading.Event(), 0
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # the loop is closed
            return
        while not turned.wait(check_seconds):
            if loop.is_closed():  # before it has called back
                return
            missed += 1
            if missed == MAX_MISSED:
                _end(missed * check_seconds)


def _end(seconds: float) -> None:
    """Writes the stacks, and ends the process even if nobody reads them.

    It uses neither `logging` nor `sys.stderr`, whose locks the hanging thread may hold, nor faulthandler, which waits
    for a reader with the GIL.
    """
    try:
        threading.Timer(LAST_WORDS_SECONDS, os._exit, (1,)).start()
        stacks = ["".join(traceback.format_stack(frame)) for frame in sys._current_frames().values()]
        text = f"the event loop has hung for {seconds:g} s: the process ends\n" + "\nanother thread:\n".join(stacks)
        os.write(STDERR, text.encode())
    finally:
        os._exit(1)
