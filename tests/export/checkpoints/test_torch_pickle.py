"""PyTorch's pickles are read without torch, and nothing in them is executed."""

import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.torch_pickle import LEGACY_MAGIC, LEGACY_PROTOCOL, MAX_PICKLE_BYTES, read_tensors
from tests.export.goldens import write_json
from tests.paths import GOLDEN

PICKLES = GOLDEN / "pickles"  # written by torch.save, with the arrays in arrays.npz
CODE: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
    (os.mkdir, ("executed",), f"{os.mkdir.__module__}.mkdir"),
    (eval, ("__import__('os').mkdir('executed')",), "builtins.eval"),
    (getattr, (OrderedDict, "fromkeys"), "builtins.getattr"),
    (pickle.loads, (b"",), "_pickle.loads"),
]


def zipped(file: Path, content: bytes, **entries: bytes) -> Path:
    """A file in the format of torch.save with this pickle."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, entry in entries.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", entry)
    return file


@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_every_tensor_of_both_formats_is_the_one_that_torch_stored(how: str) -> None:
    want = np.load(PICKLES / "arrays.npz")
    tensors = read_tensors(PICKLES / f"{how}.bin")
    assert set(tensors) == set(want)
    for name, weight in tensors.items():
        array = weight.load()
        assert (weight.shape, array.dtype) == (want[name].shape, np.dtype(np.float32)), name
        np.testing.assert_array_equal(array, want[name], err_msg=name)


def test_shards_of_pickles_are_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "bert" / "config.json", tmp_path)
    shards = {part: f"pytorch_model-{part}.bin" for part in ("zip", "legacy", "bert")}
    for part, file in shards.items():
        shutil.copy(PICKLES / f"{part}.bin", tmp_path / file)
    write_json(tmp_path / "pytorch_model.bin.index.json", {"weight_map": shards})
    checkpoint = Checkpoint(tmp_path)
    assert {"bert.pooler.dense.bias", "transposed", "norm.weight"} <= checkpoint.names
    assert checkpoint.weight("float16", shape=(2, 3)).load().dtype == np.float32


class Runs:
    """A pickle of it calls `function` with `arguments` when it is loaded in the usual way."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize(("function", "arguments", "name"), CODE)
@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_a_pickle_with_code_is_refused_and_nothing_runs(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    name: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    protocol = 3 if how == "zip" else 4
    content = pickle.dumps({"bert.pooler.dense.bias": Runs(function, *arguments)}, protocol)
    file = zipped(tmp_path / "pytorch_model.bin", content)
    if how == "legacy":
        file.write_bytes(content)
    with pytest.raises(ExportError, match=f"asks for {name}, which is no tensor: nothing of it was executed"):
        read_tensors(file)
    assert not (tmp_path / "executed").exists()
    if "executed" in str(arguments):
        pickle.loads(content)  # pickle itself would have run it
        assert (tmp_path / "executed").exists()


def tensor(offset: str = "0", shape: str = "(I2\nt", strides: str = "(I1\nt", key: str = "0") -> bytes:
    """A state_dict with one tensor in a storage of two floats, in protocol 0."""
    storage = f"(Vstorage\nctorch\nFloatStorage\nV{key}\nVcpu\nI2\ntQ"
    rebuild = f"ctorch._utils\n_rebuild_tensor_v2\n({storage}I{offset}\n{shape}{strides}I00\nNtR"
    return f"(dVw\n{rebuild}s.".encode()


DAMAGED = {
    "past the storage's end": (tensor(offset="1"), "is not inside its storage"),
    "a stride past its end": (tensor(strides="(I2\nt"), "is not inside its storage"),
    "a negative stride": (tensor(strides="(I-1\nt"), "is not inside its storage"),
    "a negative offset": (tensor(offset="-1"), "is not inside its storage"),
    "a shape of words": (tensor(shape="(Va\nt"), "is not inside its storage"),
    "a missing storage": (tensor(key="7"), "storage 7 is missing"),
    "a changed function": (b"ctorch._utils\n_rebuild_tensor\n(dVa\nI1\nsb.", "the pickle changes a function"),
    "a memo of gigabytes": (b"(dr\xff\xff\xff\x7f.", f"more than {MAX_PICKLE_BYTES} bytes"),
    "no tensors": (pickle.dumps({"a": 1}), "holds something else than tensors by name"),
    "a dictionary around them": (b"(dVstate_dict\n" + tensor()[:-1] + b"s.", "save the result of model.state_dict"),
    "no pickle": (b"hello", "truncated or damaged"),
    "a long pickle": (pickle.dumps("x" * MAX_PICKLE_BYTES), "has a pickle of more than"),
}


@pytest.mark.parametrize("what", sorted(DAMAGED))
def test_a_damaged_pickle_is_refused(what: str, tmp_path: Path) -> None:
    content, sentence = DAMAGED[what]
    with pytest.raises(ExportError, match=sentence):
        read_tensors(zipped(tmp_path / "a.bin", content, data__0=bytes(8)))


@pytest.mark.parametrize(("magic", "version"), [(LEGACY_MAGIC, LEGACY_PROTOCOL + 1), (1, LEGACY_PROTOCOL)])
def test_a_pickle_of_another_magic_number_or_version_is_refused(magic: int, version: int, tmp_path: Path) -> None:
    (file := tmp_path / "a.bin").write_bytes(pickle.dumps(magic) + pickle.dumps(version))
    with pytest.raises(ExportError, match=f"is no file of torch.save: it begins with {magic}, {version}"):
        read_tensors(file)


@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_a_truncated_or_inverted_pickle_is_read_or_refused(how: str, tmp_path: Path) -> None:
    whole = (PICKLES / f"{how}.bin").read_bytes()
    for n in range(0, len(whole), 37):
        for content in (whole[:n], whole[:n] + bytes([whole[n] ^ 0xFF]) + whole[n + 1 :]):
            (tmp_path / "a.bin").write_bytes(content)
            with suppress(ExportError):  # any other exception fails the test
                for weight in read_tensors(tmp_path / "a.bin").values():
                    weight.load()


def test_big_endian_and_compressed_storages_are_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.bin", tensor(), data__0=np.array([1, 2], "<f4").tobytes())
    assert read_tensors(file)["w"].load().tolist() == [1, 2]
    with pytest.raises(ExportError, match="only little endian is supported"):
        read_tensors(zipped(file, tensor(), data__0=bytes(8), byteorder=b"big"))
    with pytest.raises(ExportError, match="storage 0 has 4 bytes instead of 8"):
        read_tensors(zipped(file, tensor(), data__0=bytes(4)))
