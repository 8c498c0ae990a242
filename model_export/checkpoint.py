"""A checkpoint: its folder, its config, its weights by part and name."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from .adapter import Adapter
from .artifact.manifest import (
    ADAPTER_CONFIG,
    MODULES,
    SENTENCE_SETTINGS,
    UNLIMITED_BYTES,
    Identity,
    fault_of_part,
    open_file,
    read_file,
)
from .errors import ExportError
from .facts import CONFIG, ENCODER_CONFIG, Files
from .families import architecture_of, family_of, jina_family
from .lazy_weight import Dense, LazyWeight, zeros
from .weights import PATTERNS, TENSORFLOW, WHOLE, Weights, convert, convert_tensorflow, read_weights

ORIGINAL_CONFIG = "bert_config.json"  # CONFIG of google-research/bert
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")  # files that a tokenizer is read from
LFS_POINTER = b"version https://git-lfs"  # the beginning of a file that Git LFS has not downloaded
MAX_JSON_BYTES = 16 * 2**20  # of a file beside the weights; the largest in use are lists of added tokens
# the first module of sentence-transformers -> why it is refused
NO_ENCODERS = {
    "StaticEmbedding": "a table of word vectors without an encoder, which is not served here",
    "Router": "several models in one, which are not served: choose a checkpoint without a Router",
}
# files of module Transformer's settings, by the names of all versions: the first that is there counts
TRANSFORMER_SETTINGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
WRAPPERS = {"module.": "DataParallel", "_orig_mod.": "torch.compile"}  # prefix of all names -> who adds it
MAX_LISTED = 5  # weights in an error message
CARD_BYTES = 2**20  # of a model card: its front matter, which may hold all results of a benchmark, and its heading
# what is read of the front matter: to parse the results too takes a second
STATED = re.compile(r"^(?:language|license|license_name):.*\n(?:[ -].*\n)*", re.MULTILINE)


class Checkpoint:
    """Opens a folder with a config and weights. Raises ExportError if the folder is no checkpoint or is damaged."""

    def __init__(
        self, folder: Path, name: str = "", *, version: str = "", base: Path | None = None, head: str = ""
    ) -> None:
        """`base` is an adapter's base, by default that of its config; `head` is what a classifier classifies."""
        self.identity = _identity(folder.resolve(), version)
        self.name = name or self.identity.source
        adapter = read_adapter(folder)
        whole = folder if adapter is None else base or adapter.local_base()  # the folder of the encoder's weights
        # with the model card, and modules.json of sentence-transformers, which saves it beside an adapter too
        self.root = folder if (folder / MODULES).is_file() else whole
        self.modules = read_modules(self.root)
        self.folder = transformer_folder(whole)
        brings_tokenizer = adapter is not None and any(any(folder.glob(pattern)) for pattern in VOCABULARIES)
        self.tokenizer_folder = folder if brings_tokenizer else self.folder
        self.assumed: dict[str, str] = {}  # setting missing from the checkpoint -> the default assumed, and why
        self.format, files = _stored(self.folder)
        _check_downloaded(files)
        self._weights = self._unwrap(read_weights(self.format, files))
        self._read: set[str] = set()
        self.config: Mapping[str, Any] = self._config()
        self.head = head or (adapter.head if adapter is not None else "")
        if adapter is not None:
            self._weights = adapter.merge(self._weights, family_of(self.config).prefix.split("|"))

    @property
    def names(self) -> Set[str]:
        """The names of all weights, with the old LayerNorm names (gamma, beta) replaced."""
        return self._weights.keys()

    @property
    def unread(self) -> Set[str]:
        """The names of the weights that `weight` did not give yet."""
        return self.names - self._read

    @property
    def title(self) -> str:
        """The first heading of the model card; empty without a heading."""
        return next((line.lstrip("# ") for line in _card(self.root).splitlines() if line.startswith("#")), "")

    @property
    def files(self) -> Files:
        """The files that state facts, but the tokenizer's; sentence-transformers reads its own only beside modules."""
        found = {CONFIG: self.config}
        if self.modules:
            found[SENTENCE_SETTINGS] = optional_json(self.root / SENTENCE_SETTINGS)
            found[ENCODER_CONFIG] = optional_json(transformer_file(self.root / self.modules[0][0]))
        return found

    @property
    def parameters(self) -> int:
        return sum(math.prod(weight.shape) for weight in self._weights.values())

    def weight(self, name: str, *, shape: tuple[int, ...]) -> LazyWeight:
        """The weight called `name`, which counts as read from now on.

        Raises ExportError if it is missing or has another shape.
        """
        if name not in self._weights:
            longer = [stored for stored in self._weights if stored.endswith(f".{name}")][:1]
            hint = "".join(f", only {stored!r}: remove the prefix" for stored in longer)
            raise ExportError(f"the checkpoint has no weight {name!r}, which this architecture needs{hint}")
        found = self._weights[name].shape
        if found != shape:
            expected = f"but config.json says it should be {list(shape)}"
            raise ExportError(f"weight {name!r} has shape {list(found)}, {expected}")
        self._read.add(name)
        return LazyWeight(shape, self._weights[name].load, name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape

    def _unwrap(self, weights: Weights) -> Weights:
        """The weights without a prefix that all their names have because the model was wrapped when it was saved."""
        while found := [prefix for prefix in WRAPPERS if weights and all(name.startswith(prefix) for name in weights)]:
            prefix = found[0]
            weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
            self.assumed[f"names without {prefix}"] = f"all weights have this prefix, which {WRAPPERS[prefix]} adds"
        return weights

    def _config(self) -> Mapping[str, Any]:
        """The config; an old config without model_type is a BERT's if the weights are named so."""
        original = not (self.folder / CONFIG).is_file() and (self.folder / ORIGINAL_CONFIG).is_file()
        if (self.folder / "gliner_config.json").is_file():
            raise ExportError(f"{self.folder} is a GLiNER, which is not served: choose a checkpoint for token labels")
        config = read_json(self.folder / (ORIGINAL_CONFIG if original else CONFIG))
        if config.get("model_type") == "bert" and config.get("position_embedding_type") == "alibi":
            return config | {"model_type": jina_family(self.names)}
        if "model_type" in config or not any(name.startswith("bert.") for name in self.names):
            return config
        self.assumed["model_type"] = "bert: the config has no model_type, and the weights are called bert.*"
        if original:
            reason = "as in transformers; google-research/bert itself computes the tanh form"
            self.assumed["hidden_act"] = f"gelu is the erf form, {reason}"
        return config | {"model_type": "bert"}


def transformer_folder(root: Path) -> Path:
    """The folder with config, weights and tokenizer: `root`, or 0_Transformer in old sentence-transformers' layouts.

    Raises ExportError for a first module of sentence-transformers that is no encoder.
    """
    modules = read_modules(root)
    for _, kind in modules[:1]:
        if why := NO_ENCODERS.get(kind.rsplit(".", 1)[-1]):
            raise ExportError(f"{root} is a {kind.rsplit('.', 1)[-1]} of sentence-transformers, {why}")
    path = next((path for path, kind in modules if kind.rsplit(".", 1)[-1] == "Transformer"), "")
    return root / path if (root / path / CONFIG).is_file() else root


def transformer_file(folder: Path) -> Path:
    """The settings of module Transformer in `folder`, which need not exist."""
    name = next((name for name in TRANSFORMER_SETTINGS if (folder / name).is_file()), ENCODER_CONFIG)
    return folder / name


def read_adapter(folder: Path) -> Adapter | None:
    """The adapter of peft in `folder`; None if it holds none. Raises ExportError if it cannot be merged."""
    path = folder / ADAPTER_CONFIG
    return Adapter(folder=folder, config=read_json(path)) if path.is_file() else None


def read_modules(root: Path) -> list[tuple[str, str]]:
    """Folder and class of each module in modules.json, in order; empty if sentence-transformers did not save it.

    Raises ExportError if the file is damaged or names a folder outside of `root`.
    """
    path = root / MODULES
    if not path.is_file():
        return []
    try:
        modules = [(str(module["path"]), str(module["type"])) for module in json.loads(read_file(path, MAX_JSON_BYTES))]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        expected = "sentence-transformers writes a list of modules with path and type"
        raise ExportError(f"{path} cannot be read: {error!r}; {expected}") from error
    if outside := [folder for folder, _ in modules if Path(folder).is_absolute() or ".." in Path(folder).parts]:
        raise ExportError(f"{path} names {outside[0]!r}: a module must be in a folder beside {MODULES}")
    return modules


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError if the file is missing, damaged or holds something else."""
    try:
        content = json.loads(read_file(path, MAX_JSON_BYTES).decode())
    except RecursionError:
        raise ExportError(f"{path} cannot be read: its values are nested too deeply") from None
    except FileNotFoundError:
        expected = "CHECKPOINT must be a Hugging Face folder with config.json and *.safetensors"
        raise ExportError(f"{path} is missing: {expected}") from None
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path} holds {type(content).__name__}, not a JSON object")
    return content


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty without the file."""
    return read_json(path) if path.is_file() else {}


def _identity(folder: Path, version: str) -> Identity:
    """Reads the model card and the folder's name, which in the hub's cache is models--ORG--NAME/snapshots/COMMIT."""
    source, revision, repository = folder.name, "", folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        source, revision = repository.removeprefix("models--").replace("--", "/"), folder.name
    stated = _stated(_card(folder))
    licenses, named = stated.get("license", []), stated.get("license_name", [])
    return Identity(
        version=version,
        source=source,
        revision=revision,
        license=", ".join(named if named and licenses == ["other"] else licenses),
        languages=tuple(stated.get("language", [])),
    )


def _card(folder: Path) -> str:
    """The beginning of the model card; empty without a card."""
    path = folder / "README.md"
    if not path.is_file():
        return ""
    with open_file(path, UNLIMITED_BYTES) as opened:
        return opened.read(CARD_BYTES).decode("utf-8-sig", errors="replace").replace("\r\n", "\n")


def _stated(card: str) -> dict[str, list[str]]:
    """What the card's front matter says of licence and languages, by key; empty if it is no YAML."""
    matter = card.partition("\n---")[0] + "\n" if card.startswith("---\n") else ""
    try:  # with all values as text: in YAML the language no is false
        stated = yaml.load("".join(STATED.findall(matter)), yaml.BaseLoader) or {}
    except (yaml.YAMLError, RecursionError):
        return {}
    lists = {key: value if isinstance(value, list) else [value] for key, value in stated.items()}
    return {key: [one for one in values if isinstance(one, str) and one] for key, values in lists.items()}


def _stored(folder: Path) -> tuple[str, list[Path]]:
    """The format of the weights, a key of WHOLE, and their files. Raises ExportError if there are none.

    As in transformers, no other file is read beside a file with all weights, or beside the shards that an index lists.
    """
    for name, single in WHOLE.items():
        if (folder / single).is_file():
            return name, [folder / single]
        if (index := folder / f"{single}.index.json").is_file():
            return name, _shards(index)
    for name, pattern in PATTERNS.items():
        if files := sorted(folder.glob(pattern)):
            return name, files
    raise ExportError(_why_no_weights(folder))


def _why_no_weights(folder: Path) -> str:
    """What the folder holds instead of weights, with the way out."""
    if not folder.is_dir():
        expected = "CHECKPOINT is a folder with config.json and *.safetensors, or a hub id like ORG/NAME"
        return f"{folder} is missing: {expected}"
    if fault := fault_of_part(folder):
        return fault
    for pattern in TENSORFLOW:
        if any(folder.glob(pattern)):
            calls = convert_tensorflow(folder, pattern)
            solution = f"convert it once with transformers 4 (version 5 cannot) and TensorFlow: {calls}"
            return f"{folder} holds a TensorFlow checkpoint, which is not supported: {solution}"
    patterns = " or ".join(PATTERNS.values())
    if runs := sorted((path.parent for path in folder.glob("checkpoint-*/config.json")), key=_step):
        found = f"only checkpoints of a Trainer: {', '.join(run.name for run in runs)}"
        return f"{folder} has no {patterns} file, {found}: name one of them, like {runs[-1]}"
    return f"{folder} has no {patterns} file: convert other formats with {convert(folder)}"


def _step(folder: Path) -> tuple[int, str]:
    """The training step in the name of a Trainer's checkpoint, and the name."""
    number = folder.name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, folder.name)


def _check_downloaded(files: Iterable[Path]) -> None:
    """Raises ExportError if a file is missing or is only a pointer of Git LFS."""
    for file in files:
        if not file.is_file():
            raise ExportError(f"{file} is missing: the download is not complete")
        with open_file(file, UNLIMITED_BYTES) as opened:
            if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ExportError(f"{file} is only a pointer of Git LFS: run `git lfs pull` in {file.parent}")


def _shards(index: Path) -> list[Path]:
    """The files that an index lists."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise ExportError(f"{index} is damaged: its weight_map must give the file of each weight")
    files = sorted(set(listed.values()))
    if outside := [file for file in files if Path(file).name != file]:
        raise ExportError(f"{index} names {outside[0]!r}: a shard must be a file beside the index")
    return [index.parent / file for file in files]


class NamedWeights:
    """Finds weights by part and layer, and counts what was read. Raises ExportError if the config is not supported.

    `weight`, `bias` and `dense` raise ExportError if the checkpoint lacks the weight or has it in another shape.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.family = family_of(checkpoint.config)
        self.architecture = architecture_of(checkpoint.config)
        self.head = checkpoint.head
        self.masks_keys = False  # whether texts have tokens that no token attends to
        self._checkpoint = checkpoint
        prefixes = self.family.prefix.split("|")
        self._prefix = next((one for one in prefixes if any(name.startswith(one) for name in checkpoint.names)), "")

    def weight(self, part: str, shape: tuple[int, ...], *, layer: int = 0) -> LazyWeight:
        return self._find(part, "weight", shape, layer)

    def bias(self, part: str, size: int, *, layer: int = 0) -> LazyWeight:
        """Zeros if the family or the config says that there is none."""
        return self._find(part, "bias", (size,), layer)

    def dense(self, part: str, out: int, width: int, *, layer: int = 0) -> Dense:
        return self.weight(part, (out, width), layer=layer), self.bias(part, out, layer=layer)

    def rows(self, part: str) -> int:
        """The outputs of a stored dense layer."""
        return self._checkpoint.shape(self._name(part, "weight", 0))[0]

    def norm(self, part: str, size: int, *, layer: int = 0) -> Dense:
        """The weight and the bias of a LayerNorm, [size]."""
        return self.weight(part, (size,), layer=layer), self.bias(part, size, layer=layer)

    def has(self, part: str, kind: str = "weight") -> bool:
        if part == "mlm_dense" and self.knows("classifier_norm"):  # a classifier has this dense layer too
            config = self._checkpoint.config
            without_bias = config.get("decoder_bias") is False and "MaskedLM" in str(config.get("architectures"))
            return without_bias or self.has("mlm_decoder", "bias")
        return self.knows(part) and self._name(part, kind, 0) in self._checkpoint.names

    def knows(self, part: str) -> bool:
        """Whether the family has such a part at all."""
        return part in self.family.parts or part in self.family.heads

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer stands between the embeddings and the first layer."""
        return self.architecture.embedding != self.architecture.hidden or self.has("projection")

    @property
    def is_untied(self) -> bool:
        """Whether the masked-LM decoder has its own weights instead of those of the word embeddings."""
        return self._checkpoint.config.get("tie_word_embeddings", True) is False

    @property
    def classifies_mean(self) -> bool:
        """Whether a classifier of texts reads the mean of the states instead of that of [CLS]."""
        return self.knows("classifier_norm") and self._checkpoint.config.get("classifier_pooling") == "mean"

    def check_all_read(self) -> None:
        """Raises ExportError if a weight is left over that may change an answer.

        Stored position numbers, the duplicate of the decoder's bias and heads that no task reads do not.
        """
        known = {self._prefix + name for name in self.family.ignored} | {self._name("mlm_decoder", "bias", 0)}
        if self.has("mlm_decoder", "bias") and self.has("mlm_bias", "bias"):
            known.add(self._name("mlm_bias", "bias", 0))
        left = sorted(self._checkpoint.unread - known)
        if unused := [name for name in left if not name.startswith(tuple(self.family.ignored_heads))]:
            more = f" and {len(unused) - MAX_LISTED} more" if len(unused) > MAX_LISTED else ""
            raise ExportError(
                f"the checkpoint has weights that are not supported: {', '.join(unused[:MAX_LISTED])}{more}. "
                "The answers would not be the model's"
            )

    def ignored_heads(self) -> list[str]:
        """The heads that the checkpoint has and no task reads."""
        stored = self._checkpoint.names
        heads = self.family.ignored_heads.items()
        return [head for prefix, head in heads if any(name.startswith(prefix) for name in stored)]

    def _find(self, part: str, kind: str, shape: tuple[int, ...], layer: int) -> LazyWeight:
        if part in self.family.slices:
            stored, place, count = self.family.slices[part]
            whole = self._find(stored, kind, (count * shape[0], *shape[1:]), layer)
            return whole.rows(place * shape[0], (place + 1) * shape[0])
        biases = self.family.biases
        if kind == "bias" and part in biases and not self._checkpoint.config.get(biases[part]):
            return zeros(shape)
        return self._checkpoint.weight(self._name(part, kind, layer), shape=shape)

    def _name(self, part: str, kind: str, layer: int) -> str:
        if part in self.family.heads:
            names = [f"{name}.{kind}" for name in self.family.heads[part].split("|")]
            return next((name for name in names if name in self._checkpoint.names), names[0])
        stored = self.family.layer(self._checkpoint.config, layer)
        return f"{self._prefix}{self.family.parts[part].format(i=stored)}.{kind}"
