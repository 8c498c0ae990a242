"""Weights that another model shares, read from the weights' file: NumPy alone. Knows no ONNX Runtime."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.manifest import StoredWeight

Weights = dict[str, NDArray[np.generic]]


def read_weights(file: Path, stored: Sequence[StoredWeight], *, mapped: bool = False) -> Weights:
    """The weights by name, in memory of this process or as mappings of the file.

    Raises OSError or ValueError where the file is missing or too short.
    """
    return {one.name: (_map if mapped else _read)(file, one) for one in stored}


def digest(weights: Iterable[NDArray[np.generic]]) -> str:
    """SHA-256 of the weights' bytes, one weight after another."""
    whole = hashlib.sha256()
    for one in weights:
        whole.update(one.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def _read(file: Path, one: StoredWeight) -> NDArray[np.generic]:
    content: NDArray[np.generic] = np.fromfile(file, one.dtype, int(np.prod(one.shape)), offset=one.offset)
    return content.reshape(one.shape)


def _map(file: Path, one: StoredWeight) -> NDArray[np.generic]:
    return np.memmap(file, one.dtype, "r", one.offset, one.shape)
