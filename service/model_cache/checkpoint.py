"""What a model's name means, and what a checkpoint's folder holds. Knows neither the cache nor how to download."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from model_export.artifact.source import HUB_ID, checkpoint_files, most_bytes, open_file

DEFAULT_REVISION = "main"
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
        """One for each folder or revision, as the exporter takes it."""
        return str(self.folder) if self.folder is not None else f"{self.name}@{self.revision}"


def find_source(model: str) -> Source:
    """A folder that exists is that folder, even where its name looks like a hub id. Raises ModelError."""
    path = Path(model).expanduser()
    if path.is_dir():
        folder = path.resolve()
        return Source(folder.name, folder)
    found = HUB_ID.fullmatch(model)
    if found is None or path.exists():
        raise ModelError(f"{model} is neither a folder nor a hub id: write ORG/NAME or ORG/NAME@REVISION")
    return Source(found["name"], None, found["revision"] or DEFAULT_REVISION)


def file_states(folder: Path) -> list[FileState]:
    """By these a change of the checkpoint is seen without reading it. Raises OSError."""
    states = [(path, path.stat()) for path in checkpoint_files(folder)]
    return [
        (str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        for path, stat in states
    ]


def content_digest(folder: Path) -> str:
    """SHA-256 of the names and contents of the checkpoint's files, which are read in full.

    Raises OSError, before it reads any of them where one is not a regular file or too large.
    """
    digest, files = hashlib.sha256(), checkpoint_files(folder)
    for path in files:
        open_file(path, most_bytes(path)).close()
    for path in files:
        with open_file(path, most_bytes(path)) as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return digest.hexdigest()
