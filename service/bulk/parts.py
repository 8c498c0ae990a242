"""The folder of a job's finished parts: one run at a time has it, and a note in it says what decides the answers.

OUTPUT.parts/lock              locked (flock) by the run, until it ends or is killed
OUTPUT.parts/job.json          the fingerprint: all that decides an answer
OUTPUT.parts/000000004096.2    the answers from row 4096 on, two of which are missing: those inputs were refused
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from service.bulk.files import FileError

Content = TypeVar("Content")
LOCK, NOTE, WRITING = "lock", "job.json", "writing"
SHOWN_CHARACTERS = 80  # of a value, in an error


@contextmanager
def lock_parts(folder: Path) -> Iterator[None]:
    """Creates the folder and keeps other runs out of it. Raises FileError where another run has it."""
    folder.mkdir(exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.fstat(file.fileno()).st_nlink > 0  # the run that had it may have removed the folder
        except BlockingIOError:
            locked = False
        if not locked:
            raise FileError(f"another run has {folder}: wait until it ends, or take another output")
        yield


def write_note(folder: Path, fingerprint: dict[str, Any]) -> None:
    write_whole(folder / NOTE, Path.write_text, json.dumps(fingerprint))


def check_note(folder: Path, fingerprint: dict[str, Any]) -> None:
    """Raises FileError with what differs from the fingerprint of the parts."""
    before, now = json.loads((folder / NOTE).read_text("utf-8")), json.loads(json.dumps(fingerprint))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        changes = "; ".join(f"{name} was {_show(before.get(name))} and is {_show(now.get(name))}" for name in names)
        raise FileError(
            f"{folder} holds parts of another job: {changes}. To continue it, run the command as it was; to start "
            "again, delete that folder"
        )


def _show(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def write_whole(path: Path, write: Callable[[Path, Content], object], content: Content) -> None:
    """A run that is killed leaves the file whole or not at all."""
    writing = path.with_name(WRITING)
    write(writing, content)
    writing.rename(path)


def finished_parts(folder: Path) -> dict[int, int]:
    """By the first row of each part: its rows without an answer."""
    return {int(path.stem): int(path.suffix[1:]) for path in folder.glob("[0-9]*.[0-9]*")}


def part_path(folder: Path, start: int, missing: int) -> Path:
    return folder / f"{start:012d}.{missing}"


def remove_parts(folder: Path) -> None:
    """While it is locked. A run that creates the lock anew at this moment has the folder, and begins."""
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()
    (folder / LOCK).unlink()
    with suppress(OSError):
        folder.rmdir()
