"""Checks that the artifact's folder may be written, and writes it completely or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .artifact.manifest import MANIFEST
from .errors import ExportError

PARTIAL = ".partial"  # suffix of the folder's name while it is written


def check_empty(artifact: Path, device: str) -> None:
    """Raises ExportError if `artifact` holds an artifact for the device, or anything but artifacts.

    Remains of a killed export do not count.
    """
    if artifact.exists() and not artifact.is_dir():
        raise ExportError(f"{artifact} is a file: name a new or an empty folder")
    if (artifact / device).exists():
        raise ExportError(f"{artifact / device} already holds an artifact: name another folder, or remove it first")
    entries = artifact.iterdir() if artifact.exists() else ()
    others = [entry.name for entry in entries if entry.suffix != PARTIAL and not (entry / MANIFEST).is_file()]
    if others:
        raise ExportError(f"{artifact} already holds something else ({others[0]}): name a new or an empty folder")


@contextmanager
def atomic_folder(artifact: Path) -> Iterator[Path]:
    """An empty folder beside `artifact`, locked by this process: renamed to `artifact` at the end, removed on an error.

    Raises ExportError if it cannot be written, or another process is writing it.
    """
    folder = artifact.with_name(artifact.name + PARTIAL)
    created = [parent for parent in folder.parents if not parent.exists()]
    try:
        with _locked(folder):
            try:
                if artifact.exists():
                    written = "already holds an artifact, which another export has written meanwhile"
                    raise ExportError(f"{artifact} {written}: name another folder, or remove it first")
                for remains in folder.iterdir():  # of a killed export
                    shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
                yield folder
                folder.rename(artifact)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        reason = error.strerror or f"{error}, which a full disk causes"
        raise ExportError(
            f"{artifact} cannot be written: {reason}. Name a folder with room that is writable"
        ) from error
    finally:
        for parent in created:  # innermost first
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it until the end of the block or of the process."""
    while (handle := _open_locked(folder)) is None:
        pass
    try:
        yield
    finally:
        os.close(handle)


def _open_locked(folder: Path) -> int | None:
    """Its descriptor, which holds the lock; None if another export renames or removes the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError), ExitStack() as opened:
        handle = os.open(folder, os.O_RDONLY)
        opened.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            solution = "wait until it is done, or name another folder"
            raise ExportError(f"another export is writing {folder}: {solution}") from None
        if os.path.samestat(os.fstat(handle), folder.stat()):
            opened.pop_all()
            return handle
    return None
