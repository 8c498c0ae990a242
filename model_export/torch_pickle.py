"""Reads the tensors of a PyTorch pickle without torch and without executing anything of the file.

`torch.save` writes a pickle whose storages lie beside it: in a zip archive (since PyTorch 1.6), or behind the pickle in
the same file (before). The pickle may call four functions of torch and create an OrderedDict; here these are stand-ins
that only record their arguments. A pickle that names anything else is refused with that name.
Formats: torch/serialization.py (`_save`, `_legacy_save`) and torch/_utils.py of PyTorch 2.
"""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from .errors import ExportError
from .lazy_weight import Array, LazyWeight, stored

MAX_PICKLE_BYTES = 4 * 2**20  # without the storages; 400 weights take about 50 kB
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
DTYPES: dict[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
STAND_INS: dict[tuple[str, str], Any] = {  # module and name -> a dtype, or what is called instead
    ("collections", "OrderedDict"): lambda *items: _StateDict(*items),
    ("torch._utils", "_rebuild_tensor"): lambda *arguments: _rebuild_tensor(*arguments),
    ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: _rebuild_tensor(*arguments),
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
}
Read = Callable[["_Storage"], bytes]
MEMO = ("PUT", "BINPUT", "LONG_BINPUT")  # opcodes with an index that the C unpickler allocates memory for


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: np.dtype[Any]
    key: str
    size: int  # elements


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int  # elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements

    @property
    def is_inside(self) -> bool:
        """Whether all elements lie in the storage."""
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or not all(type(n) is int and n >= 0 for n in numbers):
            return False
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return 0 in self.shape or last < self.storage.size


class _StandIn:
    """A callable in place of a class or function that the pickle names; the pickle cannot change it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a function")


class _StateDict(dict[object, object]):
    """In place of OrderedDict; drops the attributes (`_metadata`) that torch stores with it."""

    def __setstate__(self, state: object) -> None:
        del state


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: object) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor has no storage")
    tensor = _Tensor(storage, offset, tuple(shape), tuple(strides))
    if not tensor.is_inside:
        raise pickle.UnpicklingError(f"a tensor of shape {list(tensor.shape)} is not inside its storage")
    return tensor


class _Unpickler(pickle.Unpickler):
    """Resolves the names of STAND_INS and no others."""

    def __init__(self, content: bytes, file: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._file = file
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str, /) -> object:
        if (module, name) not in STAND_INS:
            raise ExportError(
                f"{self._file} asks for {module}.{name}, which is no tensor: nothing of it was executed; a checkpoint "
                "holds the result of model.state_dict() and nothing else"
            )
        found = STAND_INS[module, name]
        return found if isinstance(found, np.dtype) else _StandIn(found)

    def persistent_load(self, pid: Any, /) -> _Storage:
        kind, dtype, key, _, size, *view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or type(size) is not int or view not in ([], [None]):
            raise pickle.UnpicklingError(f"an unknown kind of storage: {pid!r:.80}")
        return self.storages.setdefault(str(key), _Storage(dtype, str(key), size))


def read_tensors(file: Path) -> dict[str, LazyWeight]:
    """The tensors of a state_dict by name, float32 when loaded; only the pickle is read now, not the storages.

    Raises ExportError if the file asks for anything but tensors, holds anything else, or is damaged.
    """
    try:
        content, open_storage = _read_zip(file) if zipfile.is_zipfile(file) else _read_legacy(file)
    except (ExportError, OSError):
        raise
    except Exception as error:  # pickles and zip archives that are damaged raise nearly every class
        raise ExportError(f"{file} is truncated or damaged: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(one, _Tensor) for name, one in content.items()
    ):
        expected = "save the result of model.state_dict() and nothing around it"
        raise ExportError(f"{file} holds something else than tensors by name: {expected}")
    return {name: _lazy(file, name, tensor, open_storage) for name, tensor in content.items()}


def _lazy(file: Path, name: str, tensor: _Tensor, read: Read) -> LazyWeight:
    def load() -> Array:
        storage = tensor.storage
        expected = storage.size * storage.dtype.itemsize
        try:
            content = read(storage)
        except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:  # zipfile's, of a damaged entry
            raise ExportError(f"{file} is truncated or damaged: {error}") from error
        if len(content) != expected:
            raise ExportError(f"{file} is truncated: storage {storage.key} has {len(content)} of {expected} bytes")
        strides = tuple(stride * storage.dtype.itemsize for stride in tensor.strides)
        flat = np.frombuffer(content, storage.dtype)[tensor.offset if 0 not in tensor.shape else 0 :]
        array = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        return np.asarray(array.astype(np.float32, order="C"))

    return stored(name, tensor.shape, load)


def _unpickle(source: BinaryIO, file: Path) -> tuple[object, dict[str, _Storage]]:
    """The next object in `source`, and its storages by key; `source` is then behind it."""
    start = source.tell()
    for opcode, argument, position in pickletools.genops(source):
        reached = (position or start) - start
        if reached > MAX_PICKLE_BYTES or (opcode.name in MEMO and int(argument or 0) > MAX_PICKLE_BYTES):
            raise ExportError(f"{file} has a pickle of more than {MAX_PICKLE_BYTES} bytes beside its tensors")
    end = source.tell()
    source.seek(start)
    unpickler = _Unpickler(source.read(end - start), file)
    return unpickler.load(), unpickler.storages


def _read_zip(file: Path) -> tuple[object, Read]:
    with zipfile.ZipFile(file) as archive:
        entries = {name.partition("/")[2]: info for name, info in archive.NameToInfo.items()}
        if "data.pkl" not in entries:
            raise ExportError(f"{file} is a zip archive without data.pkl: torch.save did not write it")
        if entries["data.pkl"].file_size > MAX_PICKLE_BYTES:
            raise ExportError(f"{file} has a pickle of more than {MAX_PICKLE_BYTES} bytes beside its tensors")
        order = archive.open(entries["byteorder"]).read(20) if "byteorder" in entries else b"little"
        if order != b"little":
            raise ExportError(f"{file} stores its numbers as {order!r:.20} endian; only little endian is supported")
        content, storages = _unpickle(io.BytesIO(archive.read(entries["data.pkl"])), file)
    for storage in storages.values():
        info, expected = entries.get(f"data/{storage.key}"), storage.size * storage.dtype.itemsize
        if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size != expected:
            found = "is missing" if info is None else f"has {info.file_size} bytes instead of {expected}"
            raise ExportError(f"{file} is damaged: storage {storage.key} {found}")

    def read(storage: _Storage) -> bytes:
        with zipfile.ZipFile(file) as archive:
            return archive.read(entries[f"data/{storage.key}"])

    return content, read


def _read_legacy(file: Path) -> tuple[object, Read]:
    """A magic number, a version, the sizes of C's types, the content, the storages' keys; then each storage's bytes."""
    with file.open("rb") as source:
        magic, version = (_unpickle(source, file)[0] for _ in range(2))
        if magic != LEGACY_MAGIC or version != LEGACY_PROTOCOL:
            raise ExportError(f"{file} is no file of torch.save: it begins with {magic!r:.40}, {version!r:.40}")
        system, _ = _unpickle(source, file)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ExportError(f"{file} does not store its numbers as little endian, which alone is supported")
        content, storages = _unpickle(source, file)
        keys, _ = _unpickle(source, file)
        if not isinstance(keys, list) or set(keys) != set(storages):
            raise ExportError(f"{file} is damaged: its list of storages is not the one of its tensors")
        places: dict[str, int] = {}
        for key in keys:
            size = int.from_bytes(source.read(8), "little")
            if size != storages[key].size:
                raise ExportError(f"{file} is truncated or damaged: storage {key} has {size} elements")
            places[key] = source.tell()
            source.seek(size * storages[key].dtype.itemsize, io.SEEK_CUR)

    def read(storage: _Storage) -> bytes:
        with file.open("rb") as source:
            source.seek(places[storage.key])
            return source.read(storage.size * storage.dtype.itemsize)

    return content, read
