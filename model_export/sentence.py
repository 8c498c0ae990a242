"""What a checkpoint makes of its hidden states: the files of sentence-transformers, ColBERT and BGE-M3."""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .architecture import Architecture
from .artifact.manifest import MODULES, SENTENCE_SETTINGS, TOKEN_WEIGHTS, Side
from .artifact.rows import MODES, SECOND_LOG
from .checkpoint import Checkpoint, optional_json, read_json, transformer_file
from .errors import ExportError
from .facts import ENCODER_CONFIG, METADATA, read_fact
from .lazy_weight import LazyWeight
from .tokenizer import MIN_TOKENS, TokenizerFiles
from .torch_pickle import read_tensors
from .weights import WHOLE, Weights, read_first

TRANSFORMERS = ("Transformer", "MLMTransformer")  # since version 5.4, and before
SPLADE_ACTIVATIONS = ("relu", SECOND_LOG)  # log(1 + relu(logit)), log(1 + log(1 + relu(logit)))
OPTIONS = (  # of module Transformer: what sentence-transformers passes on when it loads the model, or for each text
    *(f"{part}_{kind}" for part in ("model", "config", "tokenizer", "processor") for kind in ("args", "kwargs")),
    *("processing_kwargs", "query_length", "document_length"),
)
WITHOUT_EFFECT = {  # on an answer
    *("attn_implementation", "cache_dir", "device_map", "dtype", "local_files_only", "low_cpu_mem_usage", "padding"),
    *("return_tensors", "revision", "token", "torch_dtype", "trust_remote_code", "use_fast", "use_safetensors"),
    "add_pooling_layer",  # no vector of these modules reads it
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
PACKAGE = "sentence_transformers."
SWITCHES = {  # switch in old configs of Pooling -> mode, in the order that the modes are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# class of torch.nn -> activation of the graph
ACTIVATIONS = {"Identity": ""} | {name: name.lower() for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")}
PLAIN_OUTPUTS = ("cls", "mean")  # modes that have an output of their own
# the only features that modules may read and write: those of a text's vector, those of tokens' vectors, the first
OF_VECTORS = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
OF_TOKENS = dict.fromkeys(OF_VECTORS, "token_embeddings")
OF_ENCODER = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
PYLATE = "pylate.models.Dense.Dense"  # class of the modules after the transformer of a ColBERT
NORM_EPSILON = 1e-5  # torch.nn.LayerNorm's default, which the module does not change
WAY_OUT = "--without-modules exports the vectors before it"
PYLATE_DEFAULTS: Mapping[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
}
STANFORD_DEFAULTS = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "document_length": 220}
PROJECTION = "linear.weight"  # of Stanford's ColBERT, among the weights of the encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """f(x W^T + b), and with a residual + x or, if the widths differ, + x R^T."""

    weight: LazyWeight  # [out, in]
    bias: LazyWeight | None  # [out]
    activation: str  # a value of ACTIVATIONS
    residual: bool = False
    residual_weight: LazyWeight | None = None  # R, [out, in]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    weight: LazyWeight  # [width]
    bias: LazyWeight  # [width]
    epsilon: float


@dataclass(frozen=True, slots=True)
class UnitLength:
    """x / max(|x|, 1e-12)."""


Layer = Dense | LayerNorm | UnitLength


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceModel:
    """What the checkpoint computes after the encoder; without modules.json the plain [CLS] vector."""

    dimensions: int  # of the vector
    modes: tuple[str, ...] = ()  # of MODES; their vectors are concatenated
    include_prompt: bool = True
    layers: tuple[Layer, ...] = ()  # after pooling
    modules: tuple[str, ...] = ()  # in words, the last Normalize included
    normalize: bool = False  # the last module is Normalize: the service does it, so that a request can do without
    left_out: tuple[str, ...] = ()
    max_tokens: int | None = None  # of a query or a document of a ColBERT, in place of the tokenizer's limit
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = ""  # of SIMILARITIES; "" if none is stated
    kept_dimensions: int = 0  # truncate_dim; 0: all
    sparse: str = ""  # the activation of its sparse vectors, or TOKEN_WEIGHTS; "" if it was not trained for them
    of_tokens: Mapping[str, Sequence[Layer]] = field(default_factory=dict)  # `multi`, TOKEN_WEIGHTS -> their layers
    colbert: Mapping[str, Any] = field(default_factory=dict)  # its settings, named as in PyLate
    masks_keys: bool = False  # queries are filled up with tokens that no token attends to

    @property
    def pooling(self) -> str:
        """The output that is the vector: cls, mean, or `sentence` if these are not it; `multi` of ColBERT."""
        plain = len(self.modes) == 1 and self.modes[0] in PLAIN_OUTPUTS and self.include_prompt and not self.layers
        return self.modes[0] if plain else "sentence" if self.modes else "multi" if self.colbert else "cls"


class _NotComputed(ExportError):
    """A module, or a value of its config, is not computed here; the message names it."""


def embedding_model(checkpoint: Checkpoint, sizes: Architecture, *, without_modules: bool = False) -> SentenceModel:
    """The `sentence_model` of the checkpoint with what is made of single tokens."""
    model, root = sentence_model(checkpoint, sizes.hidden, without_modules=without_modules), checkpoint.root
    modules, width, defaults, files = checkpoint.modules, sizes.hidden, PYLATE_DEFAULTS, dict(checkpoint.files)
    if PROJECTION in checkpoint.names:
        path, width = root / METADATA, checkpoint.shape(PROJECTION)[0]
        files[METADATA] = found = optional_json(path)
        if found.get("similarity", "cosine") != "cosine":
            raise ExportError(f"{path} sets similarity to {found['similarity']!r}; only 'cosine' is computed")
        defaults = {**PYLATE_DEFAULTS, **STANFORD_DEFAULTS}
        if found.get("mask_punctuation") is False:
            defaults["skiplist_words"] = []
        weight = checkpoint.weight(PROJECTION, shape=(width, sizes.hidden))
        layers: list[Layer] = [Dense(weight=weight, bias=None, activation="")]
    elif any(kind == PYLATE for _, kind in modules):
        path, layers = root / SENTENCE_SETTINGS, []
        for folder, _ in modules[1:]:
            dense, _, width = read_dense(root / folder, width, of_tokens=True)
            layers.append(dense)
    else:
        if not modules:
            checkpoint.assumed["pooling"] = "cls; sentence-transformers takes the mean without modules.json"
        return _with_bge_m3(model, root, sizes.hidden)
    settings = {key: read_fact(key, files, checkpoint.assumed) for key in PYLATE_DEFAULTS}
    settings = {key: defaults[key] if value is None else value for key, value in settings.items()}
    for key, value in settings.items():
        if type(value) is not type(PYLATE_DEFAULTS[key]) or (key.endswith("_length") and value < MIN_TOKENS):
            raise ExportError(f"{path} sets {key} to {value!r}; it must be a value like {PYLATE_DEFAULTS[key]!r}")
    lengths = settings["query_length"], settings["document_length"]
    masks_keys = settings["do_query_expansion"] and not settings["attend_to_expansion_tokens"]
    windows = [window + MIN_TOKENS for window in sizes.windows if window]  # a filler may be so far from the query
    if masks_keys and (lengths[0] > min(windows, default=lengths[0]) or sizes.positional == "disentangled"):
        most = f"is computed up to {min(windows)} tokens" if windows else "is not computed"
        filled = f"{path}: queries are filled up to {lengths[0]} tokens that attend to the query alone"
        raise ExportError(f"{filled}; in family {sizes.family} that {most}")
    words = (f"Dense({sizes.hidden} to {width}) of each token", "Normalize")
    fields = {"colbert": settings, "masks_keys": masks_keys, "dimensions": width, "normalize": True, "modules": words}
    return _with_vectors(model, [*layers, UnitLength()], **fields, max_tokens=max(lengths))


def sentence_model(checkpoint: Checkpoint, width: int, *, without_modules: bool = False) -> SentenceModel:
    """What `checkpoint`, whose hidden states have `width` channels, computes after the encoder.

    `without_modules` leaves out the first module that is not computed and all after it. Raises ExportError if there
    is such a module without that option, or a file is damaged.
    """
    folder, model, listed = checkpoint.root, SentenceModel(dimensions=width), checkpoint.modules
    if not listed:
        return model
    _check_options(transformer_file(folder / listed[0][0]), checkpoint.files[ENCODER_CONFIG])
    path, settings = folder / SENTENCE_SETTINGS, checkpoint.files[SENTENCE_SETTINGS]
    prompted = replace(model, **_prompts(settings, path))
    if settings.get("model_type") == "CrossEncoder":  # a classifier's folder: /predict
        if prompt := prompted.prompts.get(prompted.default_prompt):
            way_out = "remove it there, and send the prompt before each query"
            raise ExportError(f"{path} sets default_prompt_name: {prompt!r} is not added to pairs here: {way_out}")
        return model
    model = replace(prompted, sparse=_splade_activation(folder, listed))
    if model.sparse or any(kind == PYLATE for _, kind in listed):
        return model
    for i, (place, kind) in enumerate(listed):
        try:
            model = _read(model, folder, place, kind, first=i == 0)
        except _NotComputed as reason:
            if not without_modules:
                raise ExportError(
                    f"module {i} of {folder / MODULES}, {kind}, {reason}: the vectors would not be the checkpoint's. "
                    f"{WAY_OUT}"
                ) from None
            model = replace(model, left_out=tuple(kind for _, kind in listed[i:]))
            break
    if model.layers and isinstance(model.layers[-1], UnitLength):
        model = replace(model, layers=model.layers[:-1], normalize=True)
    return model


def _splade_activation(folder: Path, modules: Sequence[tuple[str, str]]) -> str:
    """The activation of `modules` (folder and class) that are an encoder and SpladePooling; "" of others.

    Raises ExportError if the pooling is not computed here: by sum instead of by maximum.
    """
    kinds = [kind.rsplit(".", 1)[-1] for _, kind in modules]
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        return ""
    path = folder / modules[1][0] / "config.json"
    config = read_json(path)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy != "max" or activation not in SPLADE_ACTIVATIONS:
        raise ExportError(
            f"{path} pools by {strategy!r} of {activation!r}; "
            f"only 'max' of {' or '.join(SPLADE_ACTIVATIONS)} is computed: "
            "remove modules.json to export the checkpoint without its sparse vectors"
        )
    return str(activation)


def _read(model: SentenceModel, folder: Path, path: str, kind: str, *, first: bool) -> SentenceModel:
    """`model` with the module of class `kind` in `folder` / `path`."""
    name = kind.rsplit(".", 1)[-1] if kind.startswith(PACKAGE) else kind
    if name == "Transformer" and first:
        _check_features(optional_json(transformer_file(folder / path)), OF_ENCODER)
        return model
    if first or (name == "Pooling") == bool(model.modes):
        raise _NotComputed("is not computed at this place")
    layer: Layer
    words, width = name, model.dimensions
    match name:
        case "Pooling":
            return _pooling(model, folder / path)
        case "Dropout":  # nothing outside of training
            return model
        case "Dense":
            layer, words, width = read_dense(folder / path, width)
        case "LayerNorm":
            weights = read_first(folder / path, WHOLE, "module")
            weight, bias = (_weight(weights, f"norm.{kind}", (width,), folder / path) for kind in ("weight", "bias"))
            layer = LayerNorm(weight=weight, bias=bias, epsilon=NORM_EPSILON)
        case "Normalize":
            _check_features(optional_json(folder / path / "config.json"), OF_VECTORS)
            layer = UnitLength()
        case _:
            raise _NotComputed("is not computed")
    return replace(model, dimensions=width, layers=(*model.layers, layer), modules=(*model.modules, words))


def _check_options(path: Path, config: Mapping[str, Any]) -> None:
    """Raises ExportError for options of loading or of tokenizing that change an answer."""
    for name, value in _stated({key: config.get(key) for key in OPTIONS}):
        if name not in WITHOUT_EFFECT:
            way_out = "write what it changes into config.json or the tokenizer's files, and remove it"
            raise ExportError(f"{path} sets {name} to {value!r}, which is not applied here: {way_out}")


def _stated(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values in nested options, by their innermost names."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _stated(value)
        elif value is not None:
            yield name, value


def _pooling(model: SentenceModel, folder: Path) -> SentenceModel:
    config = read_json(folder / "config.json")
    stated = config.get("pooling_mode")
    if stated is None:
        stated = [mode for switch, mode in SWITCHES.items() if config.get(switch)] or "mean"
    modes = tuple(stated) if isinstance(stated, list) else (stated,)
    if unknown := [str(mode) for mode in modes if mode not in MODES]:
        raise _NotComputed(f"pools by {', '.join(unknown)}, and only {', '.join(sorted(MODES))} are computed")
    size = config.get("embedding_dimension", config.get("word_embedding_dimension", model.dimensions))
    if size != model.dimensions:
        raise ExportError(f"{folder}/config.json pools {size} channels; the encoder has {model.dimensions}")
    kept = config.get("include_prompt", True) is not False
    words = f"Pooling({' + '.join(modes)}{'' if kept else ', without the prompt'})"
    size = model.dimensions * len(modes)
    return replace(model, modes=modes, include_prompt=kept, dimensions=size, modules=(*model.modules, words))


def read_dense(folder: Path, width: int, *, of_tokens: bool = False) -> tuple[Dense, str, int]:
    """The module Dense in `folder`, which reads vectors of `width`; in words; the width of its own vectors."""
    config = read_json(folder / "config.json")
    _check_features(config, OF_TOKENS if of_tokens else OF_VECTORS)
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise _NotComputed(f"has the activation {path}, and only {', '.join(ACTIVATIONS)} of torch.nn are computed")
    weights, out = read_first(folder, WHOLE, "module"), config.get("out_features")
    if not isinstance(out, int):
        raise ExportError(f"{folder}/config.json sets out_features to {out!r}; it must be an integer")
    bias = _weight(weights, "linear.bias", (out,), folder) if config.get("bias", True) else None
    weight, residual = _weight(weights, "linear.weight", (out, width), folder), config.get("use_residual") is True
    other = _weight(weights, "residual.weight", (out, width), folder) if residual and out != width else None
    dense = Dense(weight=weight, bias=bias, activation=ACTIVATIONS[name], residual=residual, residual_weight=other)
    return dense, f"Dense({width} to {out}, {name}{', with a residual' if residual else ''})", out


def read_linear(path: Path, width: int) -> Dense:
    """The torch.nn.Linear whose state_dict is in the file `path`."""
    weights = read_tensors(path)
    out = weights["weight"].shape[0] if "weight" in weights else 0
    weight, bias = _weight(weights, "weight", (out, width), path), _weight(weights, "bias", (out,), path)
    return Dense(weight=weight, bias=bias, activation="")


def _check_features(config: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    for key, value in expected.items():
        if config.get(key) not in (None, value):
            raise _NotComputed(f"has {key} {config[key]!r}, and only {value!r} is computed")


def _weight(weights: Weights, name: str, shape: tuple[int, ...], folder: Path) -> LazyWeight:
    found = weights[name].shape if name in weights else "missing"
    if found != shape:
        raise ExportError(f"weight {name!r} of {folder} must have the shape {list(shape)}; it is {found}")
    return weights[name]


def _prompts(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The fields of SentenceModel that config_sentence_transformers.json gives."""
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ExportError(f"{path} is damaged: prompts must be texts by name")
    if default and default not in prompts:
        known = ", ".join(prompts) or "none"
        raise ExportError(f"{path} sets default_prompt_name to {default!r}, which is not one of its prompts: {known}")
    similarity, kept = settings.get("similarity_fn_name"), settings.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1):
        raise ExportError(f"{path} sets truncate_dim to {kept!r}; it must be a positive integer")
    stated = similarity if similarity in SIMILARITIES else ""  # sentence-transformers ignores another name
    return {"prompts": prompts, "default_prompt": default, "similarity": stated, "kept_dimensions": kept or 0}


def _with_vectors(model: SentenceModel, layers: list[Layer], **more: Any) -> SentenceModel:
    return replace(model, of_tokens={"multi": layers}, prompts={"query": "", "document": "", **model.prompts}, **more)


def _with_bge_m3(model: SentenceModel, root: Path, hidden: int) -> SentenceModel:
    """`model` with the layers that BGE-M3 has in files of their own."""
    if (path := root / "colbert_linear.pt").is_file():
        model = _with_vectors(model, [read_linear(path, hidden), UnitLength()])
    if (path := root / "sparse_linear.pt").is_file():
        weights = [replace(read_linear(path, hidden), activation="relu")]
        model = replace(model, of_tokens={**model.of_tokens, TOKEN_WEIGHTS: weights}, sparse=TOKEN_WEIGHTS)
    return model


def sides(model: SentenceModel, files: TokenizerFiles) -> dict[str, Side]:
    """How queries and documents are read. Raises ExportError if the tokenizer lacks a token that is named."""
    settings, special, names = model.colbert, files.special_tokens, ("query", "document")
    if "multi" not in model.of_tokens:
        return {}
    if not settings:
        return dict.fromkeys(names, Side(max_tokens=files.max_tokens, skipped=(special["cls"],), averages=True))
    if settings["do_query_expansion"] and "mask" not in special:
        raise ExportError("the checkpoint fills up queries with mask tokens, and its tokenizer has none")
    ids = map(files.tokenizer.token_to_id, settings["skiplist_words"])
    skipped = tuple(sorted({number for number in ids if number is not None} - {special.get("unk")}))
    markers = {name: _marker(files, settings[f"{name}_prefix"]) for name in names}
    return {
        name: Side(
            max_tokens=min(settings[f"{name}_length"], files.max_tokens) - len(markers[name]),
            marker=markers[name],
            fills=settings["do_query_expansion"] and name == "query",
            attends_filler=settings["attend_to_expansion_tokens"],
            skipped=skipped if name == "document" else (),
        )
        for name in names
    }


def _marker(files: TokenizerFiles, text: str) -> tuple[int, ...]:
    number = files.tokenizer.token_to_id(text)
    if text and number is None:
        raise ExportError(f"the checkpoint marks texts with {text!r}, and its tokenizer has no such token")
    return () if number is None else (number,)
