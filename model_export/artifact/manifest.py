"""The manifest of an artifact, and the files of artifacts and checkpoints."""

import collections.abc
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import stat
import typing
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
MODULES = "modules.json"  # of sentence-transformers
ADAPTER_CONFIG = "adapter_config.json"  # of peft
TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model")
SENTENCE_SETTINGS = "config_sentence_transformers.json"
SENTENCE_FILES = (MODULES, SENTENCE_SETTINGS, "[0-9]_*/*")
TOKEN_FILES = ("artifact.metadata", "colbert_linear.pt", "sparse_linear.pt")  # of ColBERT and BGE-M3
DESCRIPTION = ("*config.json", "README.md", *SENTENCE_FILES, *TOKEN_FILES, *TOKENIZER_FILES)
CHECKPOINT_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PREFERRED = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
PICKLES = ("pytorch_model*.bin", "adapter_model.bin", "pytorch_model.bin.index.json")  # read only without PREFERRED
MAX_DESCRIPTION_BYTES = 64 * 2**20  # of a file beside the weights; the largest tokenizer.json in use has 33 MB
MAX_MANIFEST_BYTES = 4 * 2**20  # that of BERT-base has 75 kB; to read 200 MB held a service for 11 s
UNLIMITED_BYTES = 2**63
FORMAT = 10
# layouts, how attention separates sequences: on the CPU and plain attention on CUDA; in bf16; packed attention on CUDA
PACKED_ROWS, BF16_ROWS, CUMULATIVE_LENGTHS = "packed rows", "packed rows for bf16", "cumulative lengths"
MANIFEST, MODEL, WEIGHTS, TOKENIZER = "manifest.json", "model.onnx", "model.onnx.data", "tokenizer.json"
ATTENTION = "attention.onnx"  # the attention probabilities; its weights are those of MODEL, in the same file
LAYERS = "layers.onnx"  # MODEL, with the hidden states between the layers as further outputs
HEADS = "heads.onnx"  # of MODEL, which read the hidden states that OpenVINO gave; in bf16
TOKEN_WEIGHTS = "token_weights"  # sparse vectors of the weights of a text's own tokens (BGE-M3), an output
OF_MEANS = frozenset({"mean_labels", "mean_choices"})  # outputs of a classifier of texts that reads the mean
CHECKSUM = "sha256"  # key in MANIFEST: of its other fields
DIGEST_LENGTH = 12  # hexadecimal digits
PREPACKED_FOR = "prepacked_for"  # key in the ONNX model's metadata: the `cpu_signature` that its weights are packed for


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that the exporter may read, sorted; other files of the folder do not count."""
    pickles = () if has_preferred_weights(folder) else PICKLES
    found = {path for pattern in (*DESCRIPTION, *CHECKPOINT_WEIGHTS, *pickles) for path in folder.glob(pattern)}
    return sorted(path for path in found if path.exists() and not path.is_dir())


def has_preferred_weights(folder: Path) -> bool:
    """Whether pickles are not read there. Safetensors of other names, as of another precision, do not replace them."""
    return any((folder / name).is_file() for name in PREFERRED)


def most_bytes(path: Path) -> int:
    """How large a file of a checkpoint may be."""
    return UNLIMITED_BYTES if path.suffix in (".safetensors", ".bin") else MAX_DESCRIPTION_BYTES


def open_file(path: Path, most: int) -> io.BufferedReader:
    """Opens a file for reading. Raises OSError for anything but a regular file of at most `most` bytes.

    Does not wait: to open a FIFO would, and to read a device need not end.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(opened)
    is_file = stat.S_ISREG(state.st_mode)
    if is_file and state.st_size <= most:
        return io.BufferedReader(io.FileIO(opened))
    os.close(opened)
    fault = f"it has {state.st_size} bytes; at most {most} are allowed" if is_file else "it is not a regular file"
    raise OSError(errno.EINVAL, fault, str(path))


def read_file(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError."""
    with open_file(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # a file of /proc has no size
        raise OSError(errno.EINVAL, f"it has more than {most} bytes", str(path))
    return content


class ManifestError(Exception):
    """This version cannot read the manifest; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A graph input or output."""

    dtype: str
    shape: tuple[str | int, ...]  # a dimension's name or its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A sequence with its known [CLS] vector, computed in float64 by the reference, not normalized."""

    ids: tuple[int, ...]
    cls: tuple[float, ...]  # [hidden]
    tolerance: float  # largest absolute difference allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """How the checkpoint makes the vector of a text; of sentence-transformers' files, or plain [CLS] without them."""

    pooling: str  # the output that is the vector: cls, mean, or sentence if these two are not it
    normalize: bool  # whether the vector is scaled to unit length
    dimensions: int  # of the vector
    modules: tuple[str, ...]  # what is computed after the encoder, in words; empty without modules.json
    left_out: tuple[str, ...]  # modules that --without-modules left out
    modes: tuple[str, ...]  # of MODES in rows.py: what the output `sentence` pools by; empty without it
    include_prompt: bool  # whether the tokens of a prompt are pooled
    prompts: Mapping[str, str]  # name -> text before every text
    default_prompt: str  # the name of the prompt of a request that names none; "": no prompt
    similarity: str  # similarity_fn_name; "" if it is not stated
    kept_dimensions: int  # truncate_dim: how many leading numbers a vector has by default; 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which model an artifact was made of; "" and () if it is not stated."""

    version: str  # that the export was given
    source: str  # ORG/NAME on the hub, or the name of the checkpoint's folder
    revision: str  # the commit on the hub
    license: str  # of the model card, like the languages
    languages: tuple[str, ...]

    @property
    def stated(self) -> dict[str, str]:
        """What is stated, in words."""
        source = f"{self.source} at {self.revision}" if self.revision else self.source
        words = {"version": self.version, "source": source, "licence": self.license}
        return {name: value for name, value in (words | {"languages": ", ".join(self.languages)}).items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The way to read a query or a document whose tokens each become a vector."""

    max_tokens: int  # without the marker
    marker: tuple[int, ...] = ()  # the id that is put after the first token, or none
    fills: bool = False  # whether mask tokens fill up a text to `max_tokens`
    attends_filler: bool = False  # whether tokens attend to those
    skipped: tuple[int, ...] = ()  # ids whose tokens have no vector
    averages: bool = False  # of a query: its score is the mean over its vectors instead of their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the service must know of an artifact before it opens the model."""

    format: int
    exporter: str  # name and version of the program that wrote the artifact
    name: str  # of the checkpoint
    identity: Identity
    family: str
    precision: str
    device: str  # cpu or cuda
    layout: str  # of the batch: PACKED_ROWS, BF16_ROWS or CUMULATIVE_LENGTHS
    sizes: Mapping[str, int]  # vocabulary, hidden, layers, heads, intermediate, segments, parameters
    max_tokens: int  # per sequence, special tokens included
    heads: tuple[str, ...]
    embedding: Embedding
    sparse: str  # its sparse vectors: the activation "relu", "log1p_relu", or TOKEN_WEIGHTS; "": not trained for them
    sides: Mapping[str, Side]  # query and document, for vectors of tokens; empty without the head `multi`
    missing: Mapping[str, str]  # head -> why the artifact does not have it
    pair_labels: tuple[str, ...]  # of the pair head's two logits; empty without that head
    labels: tuple[str, ...]  # of the classifier's logits; empty without a classifier
    label_scores: str  # how a sequence classifier's logits become scores: "softmax", "sigmoid", "none"
    relevance_scores: str  # how a cross-encoder's logit becomes a score: "sigmoid", "none"
    special_tokens: Mapping[str, int]  # cls, sep, mask, pad, unk, and bos and eos if they are none of these -> id
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    assumed: Mapping[str, str]  # setting missing from the checkpoint -> the default assumed, and why
    verification: Mapping[str, float]  # largest errors against the float64 reference
    golden: tuple[Golden, ...]  # the first is the canary
    files: Mapping[str, str]  # file name -> SHA-256; as `files_of`

    @property
    def canary(self) -> Golden:
        return self.golden[0]

    @property
    def classifies_mean(self) -> bool:
        """Whether the classifier of texts reads the mean of a text."""
        return not OF_MEANS.isdisjoint(self.outputs)

    @property
    def digest(self) -> str:
        """Names the artifact: the beginning of the checksum of all fields, and so of all files."""
        return _checksum(dataclasses.asdict(self))[:DIGEST_LENGTH]

    def write(self, folder: Path) -> None:
        fields = dataclasses.asdict(self)
        text = json.dumps(fields | {CHECKSUM: _checksum(fields)}, indent=1, ensure_ascii=False) + "\n"
        if (size := len(text.encode())) > MAX_MANIFEST_BYTES:
            fault = f"the {MANIFEST} of this model has {size} bytes, and a service reads at most {MAX_MANIFEST_BYTES}"
            raise ManifestError(f"{fault}: shorten the names of its labels or its prompts")
        (folder / MANIFEST).write_text(text, "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the folder's manifest. Raises ManifestError if it is missing, changed or of another format."""
        try:
            content = json.loads(read_file(folder / MANIFEST, MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            raise ManifestError(
                f"{folder} has no {MANIFEST}, so it is not an artifact; "
                "create one with `packbert export CHECKPOINT ARTIFACT`, where ARTIFACT is a new folder"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(f"{folder / MANIFEST} cannot be read: {error}") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise ManifestError(
                f"{folder / MANIFEST} has format {found!r}; "
                f"this version reads format {FORMAT}: export the checkpoint again"
            )
        if content.pop(CHECKSUM, None) != _checksum(content):
            raise ManifestError(
                f"{folder / MANIFEST} was changed since the export: its content does not have its SHA-256; "
                "export the checkpoint again"
            )
        try:
            return typing.cast(Self, _record(cls, content))
        except (TypeError, AttributeError) as error:
            raise ManifestError(f"{folder / MANIFEST} is damaged: {error}") from error

    def check_files(self, folder: Path, *, unread: Container[str] = ()) -> None:
        """Raises ManifestError if a file is missing or, unless it is in `unread`, is damaged."""
        for path in [folder / name for name in self.files]:
            if not path.is_file():
                raise ManifestError(f"{path} is missing: export the checkpoint again")
            if path.name not in unread:
                self.check_file(path, sha256(path))

    def check_file(self, path: Path, digest: str) -> None:
        """Raises ManifestError if `digest` is not the SHA-256 of the file that was recorded at export."""
        if digest != self.files[path.name]:
            raise ManifestError(
                f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}; export the checkpoint again"
            )


def available(folder: Path) -> list[str]:
    """The devices that `folder` holds an artifact for."""
    return [device for device in ("cpu", "cuda") if (folder / device / MANIFEST).is_file()]


def fault_of_part(folder: Path) -> str:
    """What to name instead of `folder` if it is the part of an artifact for a device; empty for another folder."""
    is_part = (folder / MANIFEST).is_file()
    return f"{folder} is a part of an artifact, for one device: name the artifact, {folder.parent}" if is_part else ""


def files_of(folder: Path) -> list[str]:
    """The files of the artifact in `folder` beside its manifest. Only an artifact in bf16 has HEADS."""
    return [MODEL, WEIGHTS, TOKENIZER, ATTENTION, LAYERS, *([HEADS] if (folder / HEADS).is_file() else [])]


def _checksum(fields: Mapping[str, object]) -> str:
    """SHA-256 of a manifest's fields, whatever their order and the white space in the file."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record(kind: Any, content: Mapping[str, Any]) -> object:
    """The dataclass `kind` from its JSON."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints.get(name), value) for name, value in content.items()})


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record(hint, value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if origin is collections.abc.Mapping:
        return {key: _value(arguments[1], item) for key, item in value.items()}
    return value
