"""The private folder of a running service: the engine's socket and the counts of its workers.

Its supervisor removes it; where that was killed its workers do; where all were killed at once, the next service does.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model_export.artifact.source import open_file

PREFIX = "bert-service-"
LOCK = "lock"  # a file in it, locked (flock) while its supervisor lives


@contextmanager
def private_folder() -> Iterator[Path]:
    """With mode 0700, in TMPDIR; removed at the end. Raises OSError where it cannot be created."""
    remove_left_behind(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    try:
        with (made / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = made.rename(made.with_name(made.name[1:]))  # locked before another service can see it
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_left_behind(parent: Path) -> None:
    """Removes the folders of this user whose supervisor has ended: their lock is free."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            if path.parent.lstat().st_uid != os.getuid():
                continue
            with open_file(path, 0) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
