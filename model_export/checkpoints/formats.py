"""The file formats of weights, one row each: safetensors, and PyTorch's pickles where torch is installed.

No code from a checkpoint is ever executed: only torch opens pickles, and only for tensors.
"""

import importlib.util
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy, which safetensors needs
import numpy as np
from safetensors import SafetensorError, safe_open

from model_export.checkpoints.lazy_weight import Array, LazyWeight
from model_export.errors import ExportError

Weights = dict[str, LazyWeight]
CONVERT = "AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of transformers"
# safetensors' dtypes that can be read; smaller floats have scales of their own
DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))  # LayerNorm's, in checkpoints converted from TensorFlow


def read_safetensors(files: list[Path]) -> Weights:
    """The weights by name. Raises ExportError where a file is damaged or has a dtype that is not supported."""
    found: Weights = {}
    for file in files:
        with _open(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
                stored = opened.get_slice(name)
                if (dtype := stored.get_dtype()) not in DTYPES:
                    raise ExportError(
                        f"{file} stores {name} as {dtype}, which is not supported: convert with {CONVERT}"
                    )
                found[modernize(name)] = _lazy_safetensor(file, name, tuple(stored.get_shape()))
    return found


def read_torch(files: list[Path]) -> Weights:
    """The weights by name. Raises ExportError where torch is not installed or a file holds anything but tensors."""
    if importlib.util.find_spec("torch") is None:
        reason = "is a pickle, which only torch opens safely, and torch is not installed"
        raise ExportError(f"{files[0]} {reason}: install torch, or convert with {CONVERT}")
    import torch

    found: Weights = {}
    for file in files:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except Exception as error:  # many classes, for a damaged file or one with code, with advice to run the code
            reason = "holds something else than tensors, or is damaged: torch does not open it with weights_only=True"
            raise ExportError(f"{file} {reason}") from error
        if not isinstance(content, dict) or not all(
            isinstance(name, str) and isinstance(one, torch.Tensor) for name, one in content.items()
        ):
            expected = "save the result of model.state_dict() and nothing around it"
            raise ExportError(f"{file} holds something else than tensors by name: {expected}")
        found |= {modernize(name): _lazy_tensor(tensor) for name, tensor in content.items()}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a folder stores its weights."""

    files: str  # a pattern
    single: str  # the file that has all weights; where it exists no other is read, as in transformers
    index: str  # the file that lists the shards
    read: Callable[[list[Path]], Weights]


FORMATS: Mapping[str, Format] = {  # by priority
    "safetensors": Format(
        files="*.safetensors", single="model.safetensors", index="model.safetensors.index.json", read=read_safetensors
    ),
    "pytorch": Format(
        files="pytorch_model*.bin", single="pytorch_model.bin", index="pytorch_model.bin.index.json", read=read_torch
    ),
}


def modernize(name: str) -> str:
    """The weight's name with the old LayerNorm names (gamma, beta) replaced."""
    for old, new in OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _lazy_safetensor(file: Path, name: str, shape: tuple[int, ...]) -> LazyWeight:
    def load() -> Array:
        with _open(file) as opened:
            return np.asarray(opened.get_tensor(name)).astype(np.float32, copy=False)

    return LazyWeight(shape, load)


def _lazy_tensor(tensor: Any) -> LazyWeight:
    return LazyWeight(tuple(tensor.shape), lambda: np.asarray(tensor.detach().float().numpy()))


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{file} is truncated or damaged: {error}") from error
