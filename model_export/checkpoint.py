"""A Hugging Face checkpoint folder: its config, its weights by name, and which of them were read.

Weights are read from disk when their `load` is called, one at a time, so a checkpoint is never in memory as a whole.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16, which safetensors asks it for
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from model_export.errors import ExportError

Array = NDArray[np.float32]
INDEX = "model.safetensors.index.json"
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))  # LayerNorm's in checkpoints converted from TensorFlow


@dataclass(frozen=True, slots=True)
class Weight:
    """A float32 array that is made when asked for."""

    shape: tuple[int, ...]
    load: Callable[[], Array]
    origin: str = ""  # equal origins mean equal content, which a graph stores once; "" is never shared

    def transposed(self) -> "Weight":
        return Weight(self.shape[::-1], lambda: np.ascontiguousarray(self.load().T), self.derived("transposed"))

    def rows(self, start: int, stop: int) -> "Weight":
        return Weight((stop - start, *self.shape[1:]), lambda: np.ascontiguousarray(self.load()[start:stop]))

    def plus(self, other: "Weight") -> "Weight":
        """The sum, with NumPy's broadcasting; keeps this weight's shape."""
        return Weight(self.shape, lambda: self.load() + other.load())

    def derived(self, how: str) -> str:
        """The origin of what is made from this weight in the way `how`."""
        return f"{self.origin} {how}" if self.origin else ""


class Checkpoint:
    """Opens a folder with `config.json` and `*.safetensors`. Raises ExportError where the folder is not one or is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Mapping[str, Any] = read_json(folder / "config.json")
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._read: set[str] = set()
        for file in _weight_files(folder):
            with _open(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
                    self._files[name] = file
                    self._shapes[name] = tuple(opened.get_slice(name).get_shape())
        self._names = {_modern(name): name for name in self._files}

    @property
    def names(self) -> frozenset[str]:
        """Every weight's name, with the old LayerNorm names (gamma, beta) replaced."""
        return frozenset(self._names)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values())

    def weight(self, name: str, *, shape: tuple[int, ...]) -> Weight:
        """The weight called `name`, which must have `shape`; counts as read from now on."""
        stored = self._names.get(name)
        if stored is None:
            raise ExportError(f"the checkpoint has no weight {name!r}, which this architecture needs")
        found = self._shapes[stored]
        if found != shape:
            raise ExportError(f"weight {stored!r} has shape {list(found)}, but config.json says it should be {list(shape)}")
        self._read.add(name)
        return Weight(shape, lambda: self._load(stored), stored)

    def ignore(self, names: frozenset[str]) -> None:
        """Marks weights as known and not needed."""
        self._read |= names

    def unread(self) -> list[str]:
        return sorted(self._names[name] for name in self.names - self._read)

    def _load(self, stored: str) -> Array:
        with _open(self._files[stored]) as opened:
            array = np.asarray(opened.get_tensor(stored)).astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise ExportError(f"weight {stored!r} holds NaN or infinite values: the checkpoint is damaged")
        return array


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError where the file is missing, damaged or holds something else."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ExportError(f"{path} is missing: CHECKPOINT must be a Hugging Face folder with config.json and *.safetensors") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path} holds {type(content).__name__}, not a JSON object")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        files = [folder / name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ExportError(
            f"{folder} has no *.safetensors file. A pytorch_model.bin can be converted with "
            "transformers: AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    for file in files:
        if not file.is_file():
            raise ExportError(f"{file} is named by {INDEX} but missing: the download is not complete")
    return files


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{file} is truncated or damaged: {error}") from error


def _modern(name: str) -> str:
    for old, new in OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
