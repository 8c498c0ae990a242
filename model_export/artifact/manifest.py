"""The artifact's contract: what `model_export` writes and `service` opens. Standard library only."""

import collections.abc
import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

FORMAT = 2
MANIFEST, MODEL, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
PREPACKED_FOR = "prepacked_for"  # in the model's own metadata, where it also holds packed weights: what `machine.kernels` said at export


class ManifestError(Exception):
    """A manifest that this version cannot read; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    dtype: str
    shape: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A sequence with a known answer: the float64 reference's raw [CLS] vector."""

    ids: tuple[int, ...]
    cls: tuple[float, ...]
    tolerance: float  # largest absolute difference that the written artifact may show


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    format: int
    exporter: str  # name and version of the program that wrote the artifact
    name: str  # of the checkpoint
    family: str
    precision: str
    device: str  # cpu or cuda
    layout: str  # how the batch reaches attention, a name out of batch.py
    sizes: Mapping[str, int]  # vocabulary, hidden, layers, heads, intermediate, segments, parameters
    max_tokens: int  # in one sequence, special tokens included
    heads: tuple[str, ...]
    pooling: str  # of the checkpoint's own sentence vectors: cls or mean
    missing: Mapping[str, str]  # head -> why the artifact does not have it
    pair_labels: tuple[str, ...]  # of the pair head's two logits; empty without it
    labels: tuple[str, ...]  # of the logits that a classifier gives a text or each token; empty without one
    label_scores: str  # what makes scores of a text's logits: "softmax", "sigmoid", "none"
    special_tokens: Mapping[str, int]  # cls, sep, mask, pad, unk -> id
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    assumed: Mapping[str, str]  # what the checkpoint did not say -> what was taken, and why
    verification: Mapping[str, float]  # largest errors against the float64 reference
    golden: tuple[Golden, ...]  # the first is the canary
    files: Mapping[str, str]  # file name -> SHA-256

    @property
    def canary(self) -> Golden:
        return self.golden[0]

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(
            json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises ManifestError where the folder has no manifest, or one of another format or with missing or unknown fields."""
        try:
            content = json.loads((folder / MANIFEST).read_text("utf-8"))
        except FileNotFoundError:
            raise ManifestError(
                f"{folder} has no {MANIFEST}: it is not an artifact; make one with `python -m model_export CHECKPOINT {folder}`"
            ) from None
        except (OSError, ValueError) as error:
            raise ManifestError(f"{folder / MANIFEST} cannot be read: {error}") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise ManifestError(
                f"{folder / MANIFEST} has format {found!r}; this version reads format {FORMAT}: export the checkpoint again"
            )
        try:
            return typing.cast(Self, _record(cls, content))
        except (TypeError, ValueError, AttributeError) as error:
            raise ManifestError(f"{folder / MANIFEST} is damaged: {error}") from error

    def check_files(self, folder: Path) -> None:
        """Raises ManifestError where a file is missing or its SHA-256 is not the one recorded at export."""
        for name, expected in self.files.items():
            if not (folder / name).is_file():
                raise ManifestError(f"{folder / name} is missing: export the checkpoint again")
            if sha256(folder / name) != expected:
                raise ManifestError(
                    f"{folder / name} is damaged: its SHA-256 is not the one in {MANIFEST}; export the checkpoint again"
                )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record(kind: Any, content: Mapping[str, Any]) -> object:
    """Builds the dataclass `kind` from JSON; every field must be there, and no other."""
    hints = typing.get_type_hints(kind)
    if set(content) != set(hints):
        raise ValueError(f"fields {sorted(set(content) ^ set(hints))} are missing or unknown in {kind.__name__}")
    return kind(**{name: _value(hints[name], value) for name, value in content.items()})


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record(hint, value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if origin is collections.abc.Mapping:
        return {key: _value(arguments[1], item) for key, item in value.items()}
    accepted = (arguments or (hint,)) if hint is not float else (float, int)
    if not isinstance(value, accepted):
        raise TypeError(f"{value!r} is not of type {hint}")
    return value
