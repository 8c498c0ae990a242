"""The artifact's folder: whether it may be written, and that it appears whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_export.artifact.manifest import MANIFEST
from model_export.errors import ExportError

PARTIAL = ".partial"  # the end of the folder's name while it is written


def check_empty(artifact: Path, device: str) -> None:
    """Raises ExportError where `artifact` holds an artifact for the device, or anything but artifacts; what a killed export left does not count."""
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
    """A folder beside `artifact`, empty and this process's own, that takes its name when all went well, and is gone when not.

    Raises ExportError where it cannot be written, or another process is writing it.
    """
    folder = artifact.with_name(artifact.name + PARTIAL)
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder):
            try:
                for left in folder.iterdir():  # by an export that was killed
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                yield folder
                folder.rename(artifact)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        reason = error.strerror or f"{error}, which is what a full disk does"
        raise ExportError(
            f"{artifact} cannot be written: {reason}. Name a folder with room that you may write to"
        ) from error
    finally:
        for parent in made:  # those that are still empty, innermost first
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Locks the folder until this process lets go of it, or ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportError(
                f"another export is writing {folder}: wait until it is done, or name another folder"
            ) from None
        yield
    finally:
        os.close(handle)
