"""How many cores this process may really use (its affinity mask and its control group's quota, not the host's count), and who goes first on them."""

import math
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # control groups v2: "max 100000" or "quota period", in microseconds
LOWER, LOWEST = 5, 19  # Linux's nice values: how much lower the threads that run the model stand than the event loop


def available_cores(quota_file: Path = QUOTA) -> int:
    """At least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, math.floor(int(quota) / int(period))))


def stand_back() -> None:
    """The event loop goes before the calling thread. A thread's priority is its own on Linux, and threads that it starts inherit it."""
    if platform.system() == "Linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + LOWER))
