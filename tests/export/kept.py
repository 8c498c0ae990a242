"""A folder for exported artifacts that outlives the test run: one for each state of the exporter."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import onnxruntime

from packbert.model_export.artifact import cpu
from tests.paths import ROOT

LIBRARIES = ("ml-dtypes", "numpy", "onnx", "safetensors", "tokenizers")
EXPORTERS = 3  # states of the exporter whose artifacts are kept


def folder_of_this_exporter(cache: Path) -> Path:
    """Where the artifacts of these sources, libraries and this processor are kept; the oldest folders are removed."""
    versions = [onnxruntime.__version__, *map(version, LIBRARIES)]
    processor = sorted(word for word in cpu._flags() if "." not in word)  # without the clock's frequency of this moment
    folder = cache / digest((ROOT / "model_export").rglob("*.py"), *versions, *processor)
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    newest = sorted(cache.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in newest[EXPORTERS:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def digest(files: Iterable[Path], *words: str) -> str:
    """Of the names and contents of `files`, and of `words`."""
    found = sha256("\n".join(words).encode())
    for file in sorted(one for one in files if one.is_file()):
        content = file.read_bytes()
        found.update(f"\n{file.name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:16]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time is in the block for `folder`."""
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
