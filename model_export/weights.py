"""The file formats of weights, and what to do with those that are not read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy, which safetensors needs
import numpy as np
from safetensors import SafetensorError, safe_open

from .artifact.manifest import MAX_DESCRIPTION_BYTES, read_file
from .errors import ExportError
from .lazy_weight import Array, LazyWeight, stored
from .torch_pickle import read_tensors

# by format, in the order of priority: the file that may hold all weights, and the pattern of all files
WHOLE = {"safetensors": "model.safetensors", "pytorch": "pytorch_model.bin"}
PATTERNS = {"safetensors": "*.safetensors", "pytorch": "pytorch_model*.bin"}
TENSORFLOW = ("*.ckpt*.index", "*.h5")  # patterns of a TensorFlow checkpoint's files
TOKENIZER = 'and AutoTokenizer.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER")'
Weights = dict[str, LazyWeight]
MAX_HEADER_BYTES = 2 * 2**20  # of a safetensors file; 400 weights take about 50 kB
# safetensors' dtypes that can be read; smaller floats have scales of their own
DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))  # LayerNorm's, in checkpoints converted from TensorFlow


def convert(folder: Path) -> str:
    """The calls that store the checkpoint as safetensors: by the class that it was trained as, with its tokenizer.

    Another class would have heads with random weights instead of the checkpoint's.
    """
    return f'{_class_of(folder)}.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER") {TOKENIZER} of transformers'


def convert_tensorflow(folder: Path, pattern: str) -> str:
    """The calls that convert the TensorFlow checkpoint in `folder`, whose files match `pattern`."""
    if pattern == "*.h5":
        call = f'{_class_of(folder)}.from_pretrained("FOLDER", from_tf=True)'
    else:
        config = 'config=BertConfig.from_json_file("FOLDER/bert_config.json")'
        call = f'BertForPreTraining.from_pretrained("FOLDER/bert_model.ckpt.index", from_tf=True, {config})'
    return f'{call}.save_pretrained("NEW_FOLDER") {TOKENIZER}'


def _class_of(folder: Path) -> str:
    """The class in config.json's architectures; "CLASS", explained, if it names none or several."""
    try:
        content = json.loads(read_file(folder / "config.json", MAX_DESCRIPTION_BYTES))
    except (OSError, ValueError, RecursionError):
        content = None
    stated = content.get("architectures") if isinstance(content, dict) else None
    if isinstance(stated, list) and len(stated) == 1 and str(stated[0]).isidentifier():
        return str(stated[0])
    return "CLASS (the class that saved the checkpoint)"


def read_first(folder: Path, files: Mapping[str, str], what: str) -> Weights:
    """`read_weights` of the first of `files`, by format, that is in the folder of `what`."""
    for kind, file in files.items():
        if (folder / file).is_file():
            return read_weights(kind, [folder / file])
    raise ExportError(f"{folder} has no {' or '.join(files.values())}: the {what} has no weights")


def read_weights(kind: str, files: list[Path]) -> Weights:
    """The weights by name in files of a format. Raises ExportError if a file is damaged or holds anything else."""
    read = _read_safetensors if kind == "safetensors" else read_tensors
    return {modernize(name): weight for file in files for name, weight in read(file).items()}


def _read_safetensors(file: Path) -> Weights:
    _check_header_size(file)
    found: Weights = {}
    with _open(file) as opened:
        for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
            stored = opened.get_slice(name)
            if (dtype := stored.get_dtype()) not in DTYPES:
                solution = f"convert with {convert(file.parent)}"
                raise ExportError(f"{file} stores {name} as {dtype}, which is not supported: {solution}")
            found[name] = _lazy_safetensor(file, name, tuple(stored.get_shape()))
    return found


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

    return stored(name, shape, load)


def _check_header_size(file: Path) -> None:
    """Raises ExportError for a header with more names than any BERT has: they would take minutes to read.

    A safetensors file begins with the size of its header, 8 bytes in little endian.
    """
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
    if MAX_HEADER_BYTES < size <= file.stat().st_size:
        limit = f"at most {MAX_HEADER_BYTES} are allowed, about 20,000 weights"
        raise ExportError(f"{file} has a header of {size} bytes; {limit}: it is no checkpoint of a BERT")


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{file} is truncated or damaged: {error}") from error
