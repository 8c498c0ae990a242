"""Moves the weights in this process's memory to huge pages: a run reads all of them (docs/design/precision.md)."""

import ctypes
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from .cpu import lower_thread_priority

# of each mapping a line "FIRST-LAST PERMISSIONS ...", then a line for each count in kB
SMAPS = Path("/proc/self/smaps")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.p 0+ 00:00 0 *(\[heap\])?\n.*?\nRss: *(\d+) kB", re.DOTALL)
HUGE_PAGE = 2**21  # bytes
LEAST_BYTES = 2**24  # of a mapping: more than the stack of a thread
FILLED = 0.9  # the share of a mapping that is in memory: the rest would be filled with zeros
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25


def start_moving() -> threading.Thread:
    """Moves them in a thread of low priority: it takes 0.1 to 1.1 s for BERT-base, and requests need not wait."""
    thread = threading.Thread(target=_move, name="huge pages", daemon=True)
    thread.start()
    return thread


def _move() -> None:
    lower_thread_priority()
    if moved := use_huge_pages():
        logging.getLogger("service").info("%d MiB of memory moved to huge pages", moved >> 20)


def use_huge_pages() -> int:
    """The bytes that are moved: at once since Linux 6.1, before it by and by. 0 if the system has no huge pages, or
    /sys/kernel/mm/transparent_hugepage/enabled is never."""
    try:
        if "[never]" in THP.read_text("utf-8"):
            return 0
        found = list(_filled_mappings(SMAPS.read_text("utf-8", "surrogateescape")))
    except OSError:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advised = (any(madvise(first, size, one) == 0 for one in (MADV_COLLAPSE, MADV_HUGEPAGE)) for first, size in found)
    return sum(size for (_, size), done in zip(found, advised, strict=True) if done)


def _filled_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """The address and the bytes of whole huge pages in each large anonymous mapping."""
    for one in re.split(r"\n(?=[0-9a-f]+-)", smaps):
        if (match := MAPPING.match(one)) is None:
            continue
        first, last = int(match[1], 16), int(match[2], 16)
        if last - first >= LEAST_BYTES and int(match[4]) << 10 >= FILLED * (last - first):
            begin = -(-first // HUGE_PAGE) * HUGE_PAGE
            yield begin, last // HUGE_PAGE * HUGE_PAGE - begin
