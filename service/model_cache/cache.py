"""The folder BERT_CACHE: artifacts named by what went into them, what is known of their sources, and locks.

    artifacts/NAME-KEY/DEVICE/   written by the exporter as a whole or not at all
    sources/ID.json              digest of a folder's or a revision's files, so that a start need not read them
    locks/KEY                    locked (flock) by the process that exports

Knows files; downloads and exports nothing. Reading needs no lock and no right to write.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_export.artifact.manifest import FORMAT, MANIFEST
from service.model_cache.checkpoint import ModelError

PARTIAL = ".partial"  # end of the name of a folder that the exporter is writing
KEY_LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that an artifact depends on."""

    digest: str  # of the checkpoint's files
    name: str  # of the model
    device: str
    precision: str
    fast_int8: bool  # of this processor; what precision `auto` depends on, False for others
    fast_bf16: bool  # as `fast_int8`, of this processor and this installation
    exporter: str = f"{version('bert-service')}, format {FORMAT}"

    @property
    def key(self) -> str:
        return _short_hash(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True, slots=True)
class Cache:
    folder: Path

    def artifact(self, recipe: Recipe) -> Path:
        """The folder of the artifact, which need not exist."""
        return self.folder / "artifacts" / f"{recipe.name.replace('/', '--')}-{recipe.key}"

    def find(self, recipe: Recipe) -> Path | None:
        """The folder of the artifact, if it is there."""
        folder = self.artifact(recipe)
        return folder if (folder / recipe.device / MANIFEST).is_file() else None

    def recall(self, title: str) -> dict[str, Any]:
        """What was remembered of a source; empty where nothing was, or it cannot be read."""
        try:
            content = json.loads(self._source(title).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and content.get("title") == title else {}

    def remember(self, title: str, **known: object) -> None:
        """Without effect where the cache cannot be written: it only saves time."""
        path = self._source(title)
        written = path.with_name(f"{path.name}.{os.getpid()}.new")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps({"title": title, **known}), "utf-8")
            written.replace(path)

    @contextmanager
    def lock(self, recipe: Recipe, on_wait: Callable[[], object]) -> Iterator[int]:
        """The file descriptor of the locked file; a child that inherits it keeps it locked until it ends too.

        Calls `on_wait` before it waits for another process. Raises ModelError where the cache cannot be written.
        """
        try:
            descriptor = self._open_lock(recipe.key)
        except OSError as error:
            solution = "set BERT_CACHE to a folder that is writable, or export with bert-export and set BERT_ARTIFACT"
            raise ModelError(f"{self.folder} cannot be written: {error.strerror}; {solution}") from error
        try:
            if not _try_lock(descriptor):
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def remove_remains(self) -> None:
        """Removes what killed exports have left of artifacts. An export that runs is locked and stays."""
        for partial in self.folder.glob(f"artifacts/*/*{PARTIAL}"):
            with suppress(OSError):
                descriptor = self._open_lock(partial.parent.name.rpartition("-")[2])
                try:
                    if _try_lock(descriptor):
                        shutil.rmtree(partial)
                        partial.parent.rmdir()  # fails, and is kept, where it holds an artifact
                finally:
                    os.close(descriptor)

    def discard(self, recipe: Recipe) -> None:
        shutil.rmtree(self.artifact(recipe), ignore_errors=True)

    def _source(self, title: str) -> Path:
        return self.folder / "sources" / f"{_short_hash(title)}.json"

    def _open_lock(self, key: str) -> int:
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / key, os.O_RDWR | os.O_CREAT, 0o666)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]
