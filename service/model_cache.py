"""From a model's name to an artifact that was exported before: names, digests, the cache and its locks."""

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

from packbert.model_export.artifact.manifest import (
    ADAPTER_CONFIG,
    FORMAT,
    HUB_ID,
    MANIFEST,
    MAX_DESCRIPTION_BYTES,
    checkpoint_files,
    most_bytes,
    open_file,
    read_file,
)

DEFAULT_REVISION = "main"
KEY_LENGTH = 16  # hexadecimal digits
FileState = tuple[str, int, int, int, int]  # name, bytes, modified and changed (ns), inode


class ModelError(Exception):
    """The model cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint as the user names it: a folder, or a repository of the hub at a revision."""

    name: str  # ORG/NAME, or the folder's name
    folder: Path | None  # None for the hub
    revision: str = ""

    @property
    def title(self) -> str:
        """Differs for each folder and revision; the exporter takes it."""
        return str(self.folder) if self.folder is not None else f"{self.name}@{self.revision}"


def find_source(model: str) -> Source:
    """A folder that exists is that folder, even if its name looks like a hub id. Raises ModelError."""
    path = Path(model).expanduser()
    if path.is_dir():
        folder = path.resolve()
        return Source(folder.name, folder)
    found = HUB_ID.fullmatch(model)
    if found is None or path.exists():
        example = "such as google-bert/bert-base-uncased"
        raise ModelError(f"{model} is neither a folder nor a hub id: write ORG/NAME or ORG/NAME@REVISION, {example}")
    return Source(found["name"], None, found["revision"] or DEFAULT_REVISION)


def file_states(folder: Path) -> list[FileState]:
    """The states of the checkpoint's files, which change with them: nothing is read. Raises OSError."""
    states = [(name, path.stat()) for name, path in _files(folder)]
    return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for name, stat in states]


def content_digest(folder: Path) -> str:
    """SHA-256 of the names and contents of the checkpoint's files, which are read in full.

    Raises OSError, before it reads any of them if a file is not regular or too large.
    """
    digest, files = hashlib.sha256(), _files(folder)
    for _, path in files:
        open_file(path, most_bytes(path)).close()
    for name, path in files:
        with open_file(path, most_bytes(path)) as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The checkpoint's files, and those of an adapter's base if that is a folder too, with their names."""
    named = [(str(path.relative_to(folder)), path) for path in checkpoint_files(folder)]
    try:
        config = json.loads(read_file(folder / ADAPTER_CONFIG, MAX_DESCRIPTION_BYTES))
        base = Path(config["base_model_name_or_path"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # not an adapter, or what the exporter refuses
        return named
    return named + [(f"base/{path.relative_to(base)}", path) for path in checkpoint_files(base)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that an artifact depends on."""

    digest: str  # of the checkpoint's files
    name: str  # of the model
    device: str
    precision: str
    fast_int8: bool  # of this processor; what precision `auto` depends on, False for others
    bf16_on: str  # the processor on which such an export measures bf16; empty if it cannot run
    exporter: str = f"{version('packbert')}, format {FORMAT}"

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
        """What was remembered of a source; empty if nothing was, or it cannot be read."""
        try:
            content = json.loads(self._source(title).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and content.get("title") == title else {}

    def remember(self, title: str, **known: object) -> None:
        """Does nothing if the cache cannot be written: it only saves time."""
        path = self._source(title)
        written = path.with_name(f"{path.name}.{os.getpid()}.new")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps({"title": title, **known}), "utf-8")
            written.replace(path)

    @contextmanager
    def lock(self, recipe: Recipe, on_wait: Callable[[], object]) -> Iterator[int]:
        """The file descriptor of the locked file; a child that inherits it keeps it locked until it ends too.

        Calls `on_wait` before it waits for another process. Raises ModelError if the cache cannot be written.
        """
        path = self.folder / "locks" / recipe.key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        except OSError as error:
            solution = (
                "set BERT_CACHE to a folder that is writable, or export with packbert export and name the artifact"
            )
            raise ModelError(f"{self.folder} cannot be written: {error.strerror}; {solution}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()

    def discard(self, recipe: Recipe) -> None:
        shutil.rmtree(self.artifact(recipe), ignore_errors=True)

    def _source(self, title: str) -> Path:
        return self.folder / "sources" / f"{_short_hash(title)}.json"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]
