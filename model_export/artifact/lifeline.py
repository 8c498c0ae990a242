"""The end of a child process with the process that started it."""

import ctypes
import os
import signal
import sys

SIGNAL_OF_PARENTS_END = 1  # Linux's PR_SET_PDEATHSIG


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """From now on this process gets the signal when `parent`, the process that started it, ends, however it ends.

    Linux sends it when the thread that started this process ends, which has to wait for this process. Does nothing on
    another system.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SIGNAL_OF_PARENTS_END, number)
        if os.getppid() != parent:  # it has ended already
            signal.raise_signal(number)
