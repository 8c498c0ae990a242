"""Detaches this process from a file that it has mapped: a change of the file can then neither change nor end it.

ONNX Runtime maps a model's weights. Overwritten in place they change under a running service, and truncated they end it
(SIGBUS). A copy in memory, mapped at the same addresses, has neither fault, and ONNX Runtime need not know of it.
"""

import ctypes
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packbert.service.errors import DeviceError

T = TypeVar("T")
MAPS = Path("/proc/self/maps")  # lines "FIRST-LAST PERMISSIONS OFFSET DEVICE INODE NAME"
DELETED = " (deleted)"  # after the name of a file that has been removed or replaced since
BLOCK_BYTES = 16 * 2**20  # copied at a time
MAP_FIXED = 0x10  # on Linux; Python's mmap has no name for it
FAILED = ctypes.c_void_p(-1).value
OPENING = threading.Lock()
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file in this process's memory, all in bytes."""

    address: int
    size: int
    offset: int
    writable: bool

    @property
    def end(self) -> int:
        return self.offset + self.size


def open_detached(opens: Callable[[], T], weights: Path) -> tuple[T, int]:
    """What `opens` returns, detached from the file `weights` that it maps, and the bytes copied.

    One thread at a time: another one could unmap the file between the reading of its mappings and their replacement.
    Raises what `opens` raises, and DeviceError where there is no memory for the copy.
    """
    with OPENING:
        opened = opens()
        try:
            return opened, detach_from(weights)
        except OSError as error:
            way_out = "BERT_SHARE_WEIGHTS=true uses the file itself"
            raise DeviceError(f"{weights} cannot be copied to memory ({error}): {way_out}") from error


def detach_from(file: Path) -> int:
    """Maps a sealed copy in place of every mapping of `file` in this process; returns the bytes copied.

    Only what is mapped is copied, once for all mappings of the same part, and from memory: it is what was mapped, also
    where another file has the name by now. Raises OSError where there is no memory, or where the file was truncated.
    """
    found = mappings_of(file)
    if not found:
        return 0
    copy = os.memfd_create("weights", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.ftruncate(copy, max(one.end for one in found))
        copied = _copy(found, copy)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
        for one in found:
            _map_over(one, copy)
    finally:
        os.close(copy)  # the mappings keep it
    return copied


def mappings_of(file: Path) -> list[Mapping]:
    """The mappings of `file` in this process, by offset; found by name, as overlay file systems change the inode."""
    name, found = str(file.resolve()), []
    for line in MAPS.read_text("utf-8", "surrogateescape").splitlines():
        addresses, permissions, offset, _, _, *rest = line.split(maxsplit=5)
        if rest and rest[0].removesuffix(DELETED) == name:
            first, last = (int(one, 16) for one in addresses.split("-"))
            found.append(Mapping(first, last - first, int(offset, 16), "w" in permissions))
    return sorted(found, key=lambda one: one.offset)


def _copy(found: Sequence[Mapping], copy: int) -> int:
    """Copies each part of the file to the same place in `copy`, once; the bytes. `pwrite` fails where a signal would
    end the process."""
    done = copied = 0
    for one in found:
        position = max(one.offset, done)
        while position < one.end:
            size = min(BLOCK_BYTES, one.end - position)
            block = (ctypes.c_char * size).from_address(one.address + position - one.offset)
            written = os.pwrite(copy, block, position)
            position, copied = position + written, copied + written
        done = max(done, one.end)
    return copied


def _map_over(one: Mapping, copy: int) -> None:
    """Replaces the mapping by the same part of `copy`. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if one.writable else 0)
    result = libc.mmap(one.address, one.size, protection, mmap.MAP_PRIVATE | MAP_FIXED, copy, one.offset)
    if result == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {one.size} bytes: {os.strerror(number)}")
