"""The weights in this process's memory: private copies of an artifact's files, and huge pages.

ONNX Runtime maps a model's weights. Overwritten in place they change under a running service, and truncated they end it
(SIGBUS). So it opens a copy in a temporary folder, and what stays mapped of that is then moved to memory, at the same
addresses: ONNX Runtime need not know of it. What is in memory is then moved to huge pages: a run reads all of it
(docs/design/precision.md).
"""

import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from packbert.model_export.artifact.cpu import cpu_signature
from packbert.model_export.artifact.manifest import MODEL, TOKENIZER, WEIGHTS, sha256
from packbert.model_export.artifact.prepack import prepack

from ..artifact import Artifact
from ..errors import DeviceError
from .cpu import lower_thread_priority
from .session import onnxruntime_version

PREFIX = "packbert-"  # of the names of temporary folders
PACKED = "packed"
MAPS = Path("/proc/self/maps")  # lines "FIRST-LAST PERMISSIONS OFFSET DEVICE INODE NAME"
DELETED = " (deleted)"  # after the name of a file that has been removed or replaced since
BLOCK_BYTES = 4 * 2**20  # copied at a time
MAP_FIXED = 0x10  # on Linux; Python's mmap has no name for it
FAILED = ctypes.c_void_p(-1).value
# of each mapping a line as in MAPS, then a line for each count in kB
SMAPS = Path("/proc/self/smaps")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.p 0+ 00:00 0 *(\[heap\])?\n.*?\nRss: *(\d+) kB", re.DOTALL)
HUGE_PAGE = 2**21  # bytes
LEAST_BYTES = 2**24  # of a mapping: more than the stack of a thread
FILLED = 0.9  # the share of a mapping that is in memory: the rest would be filled with zeros
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
log = logging.getLogger("service")


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


@contextmanager
def own_files(artifact: Artifact, shared: Path | None = None) -> Iterator[Path]:
    """A folder to open the graphs from: a copy that nobody else writes, and whose SHA-256 are those of the manifest.

    `shared`: the parent of a copy that stays, which the workers of a service share, see `shared_files`. Raises
    ManifestError, and DeviceError without room for the copy.
    """
    if shared is not None:
        yield shared_files(artifact, shared)
        return
    _remove_abandoned()
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX)))
            _copy_files(artifact, folder, stack)
            yield folder
        except OSError as error:  # `detach_from` raises it too
            way_out = f"make room in {gettempdir()}, or name another folder in TMPDIR"
            raise DeviceError(f"{artifact.weights} cannot be copied ({error}): {way_out}") from error


def shared_files(artifact: Artifact, parent: Path) -> Path:
    """The copy in `parent`, with the weights of the model also packed for this processor in its folder PACKED: sessions
    in several processes map the same memory. The first process makes it, and the others wait for it.

    Raises as `own_files`.
    """
    machine = hashlib.sha256(cpu_signature(onnxruntime_version()).encode()).hexdigest()[:8]
    folder = parent / f"{artifact.digest[:32]}-{machine}"
    try:
        if folder.exists():
            return folder
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / f"{folder.name}.lock").open("a") as lock, ExitStack() as stack:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                made = Path(stack.enter_context(TemporaryDirectory(dir=parent)))
                (made / "copy").mkdir()
                _copy_files(artifact, made / "copy", stack)
                prepack(made / "copy" / MODEL, made / "copy" / PACKED)
                (made / "copy").rename(folder)
    except OSError as error:
        way_out = "make room, name another folder in BERT_CACHE, or set BERT_WORKERS to 1"
        raise DeviceError(f"{artifact.weights} cannot be copied to {parent} ({error}): {way_out}") from error
    return folder


def _copy_files(artifact: Artifact, folder: Path, stack: ExitStack) -> None:
    """Copies all files but the tokenizer. Until the end of `stack` their locks tell that they are in use."""
    manifest = artifact.manifest
    manifest.check_files(artifact.folder, unread=manifest.files)
    for name in manifest.files.keys() - {TOKENIZER}:
        copy = stack.enter_context((folder / name).open("xb"))
        fcntl.flock(copy, fcntl.LOCK_EX)
        with (artifact.folder / name).open("rb") as file:
            shutil.copyfileobj(file, copy, BLOCK_BYTES)
        copy.flush()
        manifest.check_file(artifact.folder / name, sha256(folder / name))


def _remove_abandoned() -> None:
    """Removes the copies of processes that were killed while they opened them: nobody holds their locks."""
    for weights in Path(gettempdir()).glob(f"{PREFIX}*/{WEIGHTS}"):
        with suppress(OSError), weights.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_size:  # an empty file is new, and will be locked
                shutil.rmtree(weights.parent)


def detach_from(file: Path) -> int:
    """Maps a copy in memory in place of every mapping of `file` in this process; returns the bytes copied.

    Only what is mapped is copied, once for all mappings of the same part. Raises OSError if there is no memory.
    """
    found = mappings_of(file)
    if not found:
        return 0
    copy = os.memfd_create("weights", os.MFD_CLOEXEC)
    try:
        os.ftruncate(copy, max(one.end for one in found))
        copied = _copy(found, copy)
        for one in found:
            _map_over(one, copy)
    finally:
        os.close(copy)  # the mappings keep it
    return copied


def mappings_of(file: Path) -> list[Mapping]:
    """The mappings of `file` in this process, by offset; found by name, as overlay file systems change the inode."""
    if not MAPS.exists():  # macOS: what it maps of a removed copy stays as it is, too
        return []
    name, found = str(file.resolve()), []
    for line in MAPS.read_text("utf-8", "surrogateescape").splitlines():
        addresses, permissions, offset, _, _, *rest = line.split(maxsplit=5)
        if rest and rest[0].removesuffix(DELETED) == name:
            first, last = (int(one, 16) for one in addresses.split("-"))
            found.append(Mapping(first, last - first, int(offset, 16), "w" in permissions))
    return sorted(found, key=lambda one: one.offset)


def _copy(found: Sequence[Mapping], copy: int) -> int:
    """Copies each part of the file to the same place in `copy`, once; returns the bytes. `pwrite` fails when a signal
    would end the process."""
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


def start_moving() -> threading.Thread:
    """Moves them in a thread of low priority: it takes 0.1 to 1.1 s for BERT-base, and requests need not wait."""
    thread = threading.Thread(target=_move, name="huge pages", daemon=True)
    thread.start()
    return thread


def _move() -> None:
    lower_thread_priority()
    if moved := use_huge_pages():
        log.info("%d MiB of memory moved to huge pages", moved >> 20)


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
        if (match := ANONYMOUS.match(one)) is None:
            continue
        first, last = int(match[1], 16), int(match[2], 16)
        if last - first >= LEAST_BYTES and int(match[4]) << 10 >= FILLED * (last - first):
            begin = -(-first // HUGE_PAGE) * HUGE_PAGE
            yield begin, last // HUGE_PAGE * HUGE_PAGE - begin
