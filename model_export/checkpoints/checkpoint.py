"""A checkpoint folder: its config, its weights by name, and which of them were read.

Weights are read from disk when their `load` is called, one at a time, so a checkpoint is never in memory as a whole.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_export.checkpoints.formats import CONVERT, FORMATS, Format
from model_export.checkpoints.lazy_weight import Array, LazyWeight
from model_export.errors import ExportError

CONFIGS = ("config.json", "bert_config.json")  # Hugging Face's name, google-research/bert's
LFS_POINTER = b"version https://git-lfs"  # what a clone without Git LFS has in place of a large file


class Checkpoint:
    """Opens a folder with a config and weights. Raises ExportError where the folder is not one or is damaged."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder = folder
        self.name = name or _name(folder.resolve())
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

    def weight(self, name: str, *, shape: tuple[int, ...]) -> LazyWeight:
        """The weight called `name`, which must have `shape`; counts as read from now on."""
        if name not in self._weights:
            longer = next(
                (
                    f", only {stored!r}: take off what stands before it"
                    for stored in self._weights
                    if stored.endswith(f".{name}")
                ),
                "",
            )
            raise ExportError(f"the checkpoint has no weight {name!r}, which this architecture needs{longer}")
        found = self._weights[name].shape
        if found != shape:
            raise ExportError(
                f"weight {name!r} has shape {list(found)}, but config.json says it should be {list(shape)}"
            )
        self._read.add(name)
        return LazyWeight(shape, lambda: self._load(name), name)

    def ignore(self, names: frozenset[str]) -> None:
        """Marks weights as known and not needed."""
        self._read |= names

    def unused_weights(self) -> list[str]:
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
            self.assumed["hidden_act"] = (
                "gelu is the erf form, as transformers has it; google-research/bert itself computes the tanh form"
            )
        return config | {"model_type": "bert"}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError where the file is missing, damaged or holds something else."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ExportError(
            f"{path} is missing: CHECKPOINT must be a Hugging Face folder with config.json and *.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path} holds {type(content).__name__}, not a JSON object")
    return content


def _name(folder: Path) -> str:
    """The folder's name; in the hub's cache, where that is a commit's (models--ORG--NAME/snapshots/COMMIT), the repository's."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name


def _format(folder: Path) -> str:
    """The first of FORMATS of which the folder has files."""
    if not folder.is_dir():
        raise ExportError(
            f"{folder} is missing: CHECKPOINT is a folder with config.json and *.safetensors, or a hub id like ORG/NAME"
        )
    if (folder / "adapter_config.json").is_file():
        raise ExportError(
            f"{folder} holds an adapter, which peft adds to a model: merge the two (merge_and_unload) and export what that gives"
        )
    for name, one in FORMATS.items():
        if any(folder.glob(one.files)) or (one.index and (folder / one.index).is_file()):
            return name
    patterns = " or ".join(one.files for one in FORMATS.values())
    raise ExportError(f"{folder} has no {patterns} file. Other formats can be converted with {CONVERT}")


def _files(folder: Path, kind: Format) -> list[Path]:
    """The format's files: the one that has everything, or all that an index names, or all there are; each is there and not a stand-in."""
    if kind.whole and (folder / kind.whole).is_file():
        files = [folder / kind.whole]
    elif kind.index and (folder / kind.index).is_file():
        files = [folder / name for name in _named(folder / kind.index)]
    else:
        files = sorted(folder.glob(kind.files))
    for file in files:
        if not file.is_file():
            raise ExportError(f"{file} is missing: the download is not complete")
        with file.open("rb") as opened:
            if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ExportError(f"{file} is only Git LFS's pointer to the weights: run `git lfs pull` in {folder}")
    return files


def _named(index: Path) -> list[str]:
    """The files that an index names."""
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise ExportError(f"{index} is damaged: its weight_map must say for each weight which file has it")
    for file in named.values():
        if not (index.parent / file).is_file():
            raise ExportError(
                f"{index.parent / file} is named by {index.name} but missing: the download is not complete"
            )
    return sorted(set(named.values()))
