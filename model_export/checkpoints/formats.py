"""The formats that weights come in, one row each: safetensors, PyTorch's pickles where torch is installed, TensorFlow's checkpoints.

Nothing from a checkpoint is ever executed: pickles are opened by torch alone, and only for tensors.
"""

import importlib.util
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16, which safetensors asks it for
import numpy as np
from safetensors import SafetensorError, safe_open

from model_export.checkpoints.lazy_weight import Array, LazyWeight
from model_export.checkpoints.tensorflow import bundle_weights
from model_export.errors import ExportError

Weights = dict[str, LazyWeight]
CONVERT = "transformers: AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
DTYPES = {
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "I32",
    "I16",
    "I8",
    "U8",
    "BOOL",
}  # of safetensors; the smaller floats count with scales of their own
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))  # LayerNorm's in checkpoints converted from TensorFlow


def read_safetensors(files: list[Path]) -> Weights:
    found: Weights = {}
    for file in files:
        with _open(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
                stored = opened.get_slice(name)
                if (dtype := stored.get_dtype()) not in DTYPES:
                    raise ExportError(
                        f"{file} stores {name} as {dtype}, which this exporter does not read: convert it with {CONVERT}"
                    )
                found[modern(name)] = _mapped(file, name, tuple(stored.get_shape()))
    return found


def read_torch(files: list[Path]) -> Weights:
    """Raises ExportError where torch is not installed or finds something else than tensors."""
    if importlib.util.find_spec("torch") is None:
        raise ExportError(
            f"{files[0]} is a pickle, which only torch opens safely, and torch is not installed here. Install it, or convert with {CONVERT}"
        )
    import torch

    found: Weights = {}
    for file in files:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except (
            Exception
        ) as error:  # torch raises many kinds for a damaged file or one with code in it, with advice to run the code
            raise ExportError(
                f"{file} holds something else than tensors, or is damaged: torch does not open it with weights_only=True"
            ) from error
        if not isinstance(content, dict) or not all(
            isinstance(name, str) and isinstance(one, torch.Tensor) for name, one in content.items()
        ):
            raise ExportError(
                f"{file} holds something else than tensors by name: store what model.state_dict() gives, and nothing around it"
            )
        found |= {modern(name): _tensor(tensor) for name, tensor in content.items()}
    return found


def read_tensorflow(files: list[Path]) -> Weights:
    """google-research/bert's names in Hugging Face's spelling; what the optimizer left is left out."""
    if len(files) > 1:
        raise ExportError(f"{files[0].parent} has {len(files)} TensorFlow checkpoints: keep one")
    found: Weights = {}
    for name, weight in bundle_weights(files[0]).items():
        if name.startswith(("bert/", "cls/", "output_")) and not name.endswith(("/adam_m", "/adam_v")):
            found[_respelled(name)] = weight.transposed() if name.endswith("/kernel") else weight
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    files: str  # a pattern
    whole: str  # the one file that has everything, which counts where it is there, as in transformers
    index: str  # the file that names the shards, where there are several
    read: Callable[[list[Path]], Weights]


FORMATS: Mapping[str, Format] = {  # in this order: the first that is there counts
    "safetensors": Format(
        files="*.safetensors", whole="model.safetensors", index="model.safetensors.index.json", read=read_safetensors
    ),
    "pytorch": Format(
        files="pytorch_model*.bin", whole="pytorch_model.bin", index="pytorch_model.bin.index.json", read=read_torch
    ),
    "tensorflow": Format(files="*.ckpt*.index", whole="", index="", read=read_tensorflow),
}


def modern(name: str) -> str:
    """The name with the old LayerNorm names (gamma, beta) replaced."""
    for old, new in OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _respelled(name: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight"""
    parts = re.sub(r"layer_(\d+)", r"layer/\1", name).split("/")
    classifier = parts[0].startswith("output_")
    ends = {
        "kernel": "weight",
        "output_weights": "weight",
        "output_bias": "bias",
        "word_embeddings": "word_embeddings.weight",
    }
    ends |= {
        "position_embeddings": "position_embeddings.weight",
        "token_type_embeddings": "token_type_embeddings.weight",
    }
    parts[-1] = ends.get(parts[-1], parts[-1])
    return modern(".".join(["classifier", *parts] if classifier else parts))


def _mapped(file: Path, name: str, shape: tuple[int, ...]) -> LazyWeight:
    def load() -> Array:
        with _open(file) as opened:
            return np.asarray(opened.get_tensor(name)).astype(np.float32, copy=False)

    return LazyWeight(shape, load)


def _tensor(tensor: Any) -> LazyWeight:
    return LazyWeight(tuple(tensor.shape), lambda: np.asarray(tensor.detach().float().numpy()))


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{file} is truncated or damaged: {error}") from error
