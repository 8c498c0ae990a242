"""How many cores this process may use (by its affinity mask and its control groups' quotas), and thread priorities."""

import math
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")  # where control groups are mounted
PROC_CGROUP = Path("/proc/self/cgroup")  # lines "0::PATH" in version 2, "NUMBER:cpu,cpuacct:PATH" in version 1
NICE_STEP, MAX_NICE = 5, 19  # the inference threads' nice value above the event loop's, and Linux's maximum


def available_cores(root: Path = CGROUP_ROOT, membership: Path = PROC_CGROUP) -> int:
    """The cores that this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _groups_of(root, membership) if (quota := _quota(folder)) is not None]
    return max(1, math.floor(min([allowed, *quotas])))


def _groups_of(root: Path, membership: Path) -> list[Path]:
    """The folders of this process's groups and of their parents. In a container the root is the container's own."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    found: list[Path] = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if not controllers or "cpu" in controllers.split(","):
            folder = root / controllers / path.lstrip("/")
            found += [one for one in (folder, *folder.parents) if one.is_relative_to(root)]
    return found


def _quota(folder: Path) -> float | None:
    """Cores, in version 2 or 1 of control groups, both in microseconds; None if there is no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = (folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # there is no such group, or "max"
        return None


def lower_thread_priority() -> None:
    """Puts the calling thread below the event loop. On Linux each thread has a priority; those it starts inherit it."""
    if platform.system() == "Linux":
        with suppress(OSError):  # a sandbox may forbid it
            nice = min(MAX_NICE, os.getpriority(os.PRIO_PROCESS, 0) + NICE_STEP)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
