"""How many cores this process may really use: its affinity mask and its control group's quota, not the host's count."""

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # control groups v2: "max 100000" or "quota period", in microseconds


def available_cores(quota_file: Path = QUOTA) -> int:
    """At least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, math.floor(int(quota) / int(period))))
