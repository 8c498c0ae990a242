"""A checkpoint folder: its config, its weights by name, and which of them were read.

Weights are read from disk when their `load` is called, one at a time, so a checkpoint is never in memory as a whole.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.formats import CONVERT, FORMATS, Format
from model_export.weights import Array, Weight

CONFIGS = ("config.json", "bert_config.json")  # Hugging Face's name, google-research/bert's


class Checkpoint:
    """Opens a folder with a config and weights. Raises ExportError where the folder is not one or is damaged."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder = folder
        self.name = name or folder.resolve().name
        self.assumed: dict[str, str] = {}  # what the checkpoint does not say -> what was taken, and why
        self.format = _format(folder)
        self._weights = FORMATS[self.format].read(_files(folder, FORMATS[self.format]))
        self._read: set[str] = set()
        self.config: Mapping[str, Any] = self._config()

    @property
    def names(self) -> frozenset[str]:
        """Every weight's name, with the old LayerNorm names (gamma, beta) replaced."""
        return frozenset(self._weights)

    @property
    def title(self) -> str:
        """The first heading of the model card; empty where there is none."""
        card = self.folder / "README.md"
        lines = card.read_text("utf-8", errors="replace").splitlines() if card.is_file() else []
        return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")

    @property
    def parameters(self) -> int:
        return sum(math.prod(weight.shape) for weight in self._weights.values())

    def weight(self, name: str, *, shape: tuple[int, ...]) -> Weight:
        """The weight called `name`, which must have `shape`; counts as read from now on."""
        if name not in self._weights:
            raise ExportError(f"the checkpoint has no weight {name!r}, which this architecture needs")
        found = self._weights[name].shape
        if found != shape:
            raise ExportError(f"weight {name!r} has shape {list(found)}, but config.json says it should be {list(shape)}")
        self._read.add(name)
        return Weight(shape, lambda: self._load(name), name)

    def ignore(self, names: frozenset[str]) -> None:
        """Marks weights as known and not needed."""
        self._read |= names

    def unread(self) -> list[str]:
        return sorted(self.names - self._read)

    def _load(self, name: str) -> Array:
        array = self._weights[name].load()
        if not np.isfinite(array).all():
            raise ExportError(f"weight {name!r} holds NaN or infinite values: the checkpoint is damaged")
        return array

    def _config(self) -> Mapping[str, Any]:
        """The config; an old one that names no family is a BERT's where the weights say so."""
        there = [name for name in CONFIGS if (self.folder / name).is_file()]
        config = read_json(self.folder / (there or CONFIGS)[0])
        if "model_type" in config or not any(name.startswith("bert.") for name in self.names):
            return config
        self.assumed["model_type"] = "bert: the config names no family, and the weights are called bert.*"
        if self.format == "tensorflow":
            self.assumed["hidden_act"] = "gelu is the erf form, as transformers has it; google-research/bert itself computes the tanh form"
        return config | {"model_type": "bert"}


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


def _format(folder: Path) -> str:
    """The first of FORMATS of which the folder has files."""
    if not folder.is_dir():
        raise ExportError(f"{folder} is missing: CHECKPOINT is a folder with config.json and *.safetensors, or a hub id like ORG/NAME")
    for name, one in FORMATS.items():
        if any(folder.glob(one.files)) or (one.index and (folder / one.index).is_file()):
            return name
    patterns = ", ".join(one.files for one in FORMATS.values())
    raise ExportError(f"{folder} has no *.safetensors file, nor any of {patterns}. Other formats can be converted with {CONVERT}")


def _files(folder: Path, kind: Format) -> list[Path]:
    """The format's files; where an index names them, all of those must be there."""
    if not kind.index or not (folder / kind.index).is_file():
        return sorted(folder.glob(kind.files))
    files = [folder / name for name in sorted(set(read_json(folder / kind.index)["weight_map"].values()))]
    for file in files:
        if not file.is_file():
            raise ExportError(f"{file} is named by {kind.index} but missing: the download is not complete")
    return files
