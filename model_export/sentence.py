"""The files of sentence-transformers: modules, pooling, prompts, limits."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import normalizers

from packbert.model_export.artifact.manifest import MODULES, SENTENCE_SETTINGS
from packbert.model_export.artifact.pooling import MODES, SECOND_LOG
from packbert.model_export.checkpoint import Checkpoint, optional_json, read_json, read_modules
from packbert.model_export.errors import ExportError
from packbert.model_export.lazy_weight import LazyWeight
from packbert.model_export.tokenizer import MIN_TOKENS, TokenizerFiles
from packbert.model_export.torch_pickle import read_tensors
from packbert.model_export.weights import FORMATS, Weights

TRANSFORMERS = ("Transformer", "MLMTransformer")  # since version 5.4, and before
SPLADE_ACTIVATIONS = ("relu", SECOND_LOG)  # log(1 + relu(logit)), log(1 + log(1 + relu(logit)))


def splade_activation(folder: Path, modules: Sequence[tuple[str, str]]) -> str:
    """One of SPLADE_ACTIVATIONS for `modules` (folder and class) that are an encoder and SpladePooling; or "".

    Raises ExportError where the pooling is not computed here: by sum instead of by maximum.
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


# module Transformer's settings; the first of these is read
TRANSFORMER_SETTINGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
OPTIONS = (  # of these settings: what sentence-transformers passes on when it loads the model, or for each text
    *(f"{part}_{kind}" for part in ("model", "config", "tokenizer", "processor") for kind in ("args", "kwargs")),
    *("processing_kwargs", "query_length", "document_length"),
)
WITHOUT_EFFECT = {  # on an answer
    *("attn_implementation", "cache_dir", "device_map", "dtype", "local_files_only", "low_cpu_mem_usage", "padding"),
    *("return_tensors", "revision", "token", "torch_dtype", "trust_remote_code", "use_fast", "use_safetensors"),
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
ACTIVATIONS = {  # class of torch.nn -> activation of the graph
    "Identity": "",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
PLAIN_OUTPUTS = ("cls", "mean")  # modes that have an output of their own
VECTOR = "sentence_embedding"  # the only feature that modules of a text's vector may read and write
PYLATE = "pylate.models.Dense.Dense"  # class of the modules after the transformer of a ColBERT
TOKEN_VECTORS = "token_embeddings"  # that of modules of tokens' vectors
NORM_EPSILON = 1e-5  # torch.nn.LayerNorm's default, which the module does not change
WAY_OUT = "--without-modules exports the vectors before it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """f(x W^T + b), and with a residual + x or, where the widths differ, + x R^T."""

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

    width: int  # of the vector
    modes: tuple[str, ...] = ()  # of MODES; their vectors are concatenated
    include_prompt: bool = True
    layers: tuple[Layer, ...] = ()  # after pooling
    modules: tuple[str, ...] = ()  # in words, the last Normalize included
    normalize: bool = False  # the last module is Normalize: the service does it, so that a request can do without
    left_out: tuple[str, ...] = ()
    max_tokens: int | None = None  # max_seq_length
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = ""  # one of SIMILARITIES; "" where none is stated
    kept_dimensions: int = 0  # truncate_dim; 0: all
    sparse: str = ""  # the activation of its sparse vectors, or TOKEN_WEIGHTS; "" where it was not trained for them
    of_tokens: Mapping[str, Sequence[Layer]] = field(default_factory=dict)  # `multi`, TOKEN_WEIGHTS -> their layers
    colbert: Mapping[str, Any] = field(default_factory=dict)  # its settings, named as in PyLate
    masks_keys: bool = False  # queries are filled up with tokens that no token attends to

    @property
    def pooling(self) -> str:
        """The output that is the vector: cls, mean, or `sentence` where these are not it; `multi` of ColBERT."""
        plain = len(self.modes) == 1 and self.modes[0] in PLAIN_OUTPUTS and self.include_prompt and not self.layers
        return self.modes[0] if plain else "sentence" if self.modes else "multi" if self.colbert else "cls"


class _NotComputed(ExportError):
    """A module, or a value of its config, is not computed here; the message names it."""


def sentence_model(checkpoint: Checkpoint, width: int, *, without_modules: bool = False) -> SentenceModel:
    """What `checkpoint`, whose hidden states have `width` channels, computes after the encoder.

    `without_modules` leaves out the first module that is not computed and all after it. Raises ExportError where there
    is such a module without that option, or a file is damaged.
    """
    folder, model = checkpoint.root, SentenceModel(width=width)
    listed, settings = read_modules(folder), optional_json(folder / SENTENCE_SETTINGS)
    if not listed or settings.get("model_type") == "CrossEncoder":  # a classifier's folder: /predict
        if prompt := settings.get("default_prompt_name"):
            checkpoint.assumed["default_prompt_name"] = f"none: {prompt!r} of a CrossEncoder is not added to its texts"
        return replace(model, **_limits(folder / listed[0][0])) if listed else model
    if sparse := splade_activation(folder, listed):
        limits = _limits(folder / listed[0][0])
        return replace(model, sparse=sparse, **limits, **_prompts(settings, folder / SENTENCE_SETTINGS))
    if any(kind == PYLATE for _, kind in listed):
        return replace(model, **_prompts(settings, folder / SENTENCE_SETTINGS))
    for i, (path, kind) in enumerate(listed):
        try:
            model = _read(model, folder, path, kind, first=i == 0)
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
    return replace(model, **_prompts(settings, folder / SENTENCE_SETTINGS))


def _read(model: SentenceModel, folder: Path, path: str, kind: str, *, first: bool) -> SentenceModel:
    """`model` with one more module."""
    name = kind.rsplit(".", 1)[-1] if kind.startswith(PACKAGE) else kind
    if name == "Transformer" and first:
        return _transformer(model, folder / path)
    if first or (name == "Pooling") == bool(model.modes):
        raise _NotComputed("is not computed at this place")
    match name:
        case "Pooling":
            return _pooling(model, folder / path)
        case "Dense":
            return _dense(model, folder / path)
        case "LayerNorm":
            return _layer_norm(model, folder / path)
        case "Normalize":
            _check_features(optional_json(folder / path / "config.json"))
            return replace(model, layers=(*model.layers, UnitLength()), modules=(*model.modules, "Normalize"))
        case "Dropout":  # nothing outside of training
            return model
    raise _NotComputed("is not computed")


def _transformer(model: SentenceModel, folder: Path) -> SentenceModel:
    config = optional_json(_settings_file(folder))
    expected = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise _NotComputed(f"has {key} {config[key]!r}, and only {value!r} is computed")
    return replace(model, **_limits(folder))


def _settings_file(folder: Path) -> Path:
    """That of module Transformer in `folder`, which need not exist."""
    return next(
        (folder / name for name in TRANSFORMER_SETTINGS if (folder / name).is_file()), folder / TRANSFORMER_SETTINGS[0]
    )


def _limits(folder: Path) -> dict[str, Any]:
    """The fields of SentenceModel that the settings of module Transformer in `folder` give. Raises ExportError for
    options of loading or of tokenizing that change an answer."""
    path = _settings_file(folder)
    config = optional_json(path)
    for name, value in _stated({key: config.get(key) for key in OPTIONS}):
        if name not in WITHOUT_EFFECT:
            way_out = "write what it changes into config.json or the tokenizer's files, and remove it"
            raise ExportError(f"{path} sets {name} to {value!r}, which is not applied here: {way_out}")
    limit = config.get("max_seq_length")
    if limit is not None and (not isinstance(limit, int) or limit < MIN_TOKENS):
        raise ExportError(f"{path} sets max_seq_length to {limit!r}; it must be an integer of at least {MIN_TOKENS}")
    return {"max_tokens": limit, "lowercase": config.get("do_lower_case") is True}


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
    size = config.get("embedding_dimension", config.get("word_embedding_dimension", model.width))
    if size != model.width:
        raise ExportError(f"{folder}/config.json pools {size} channels; the encoder has {model.width}")
    kept = config.get("include_prompt", True) is not False
    words = f"Pooling({' + '.join(modes)}{'' if kept else ', without the prompt'})"
    width = model.width * len(modes)
    return replace(model, modes=modes, include_prompt=kept, width=width, modules=(*model.modules, words))


def _dense(model: SentenceModel, folder: Path) -> SentenceModel:
    dense, words, width = read_dense(folder, model.width)
    return replace(model, width=width, layers=(*model.layers, dense), modules=(*model.modules, words))


def read_dense(folder: Path, width: int, *, of_tokens: bool = False) -> tuple[Dense, str, int]:
    """The module Dense in `folder`, which reads vectors of `width`; in words; the width of its own vectors."""
    config = read_json(folder / "config.json")
    _check_features(config, TOKEN_VECTORS if of_tokens else VECTOR)
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise _NotComputed(f"has the activation {path}, and only {', '.join(ACTIVATIONS)} of torch.nn are computed")
    weights, out = _weights(folder), config.get("out_features")
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


def _layer_norm(model: SentenceModel, folder: Path) -> SentenceModel:
    weights = _weights(folder)
    weight, bias = (_weight(weights, f"norm.{kind}", (model.width,), folder) for kind in ("weight", "bias"))
    norm = LayerNorm(weight=weight, bias=bias, epsilon=NORM_EPSILON)
    return replace(model, layers=(*model.layers, norm), modules=(*model.modules, "LayerNorm"))


def _check_features(config: Mapping[str, Any], feature: str = VECTOR) -> None:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, feature):
            raise _NotComputed(f"has {key} {config[key]!r}, and only {feature!r} is computed")


def _weights(folder: Path) -> Weights:
    for one in FORMATS.values():
        if (folder / one.single).is_file():
            return one.read([folder / one.single])
    raise ExportError(
        f"{folder} has no {' or '.join(one.single for one in FORMATS.values())}: the module has no weights"
    )


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
    stated = similarity if similarity in SIMILARITIES else ""  # sentence-transformers ignores another one
    return {"prompts": prompts, "default_prompt": default, "similarity": stated, "kept_dimensions": kept or 0}


def apply_sentence_settings(files: TokenizerFiles, model: SentenceModel, *, positions: int) -> None:
    """Changes `files` as sentence-transformers changes a tokenizer that it loads, for a model of `positions`.

    max_seq_length replaces the tokenizer's own limit, and do_lower_case adds a normalizer where none lowercases.
    """
    if model.max_tokens is not None:
        files.max_tokens = min(model.max_tokens, positions)
    if not model.lowercase:
        return
    tokenizer = files.tokenizer
    stated = json.loads(tokenizer.to_str())["normalizer"]
    if stated is None:
        tokenizer.normalizer = normalizers.Lowercase()
    elif not _lowercases(stated):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), tokenizer.normalizer])


def _lowercases(normalizer: dict[str, object]) -> bool:
    """Whether a normalizer of tokenizer.json, or one inside of it, lowercases."""
    inner = normalizer.get("normalizers")
    if isinstance(inner, list) and any(_lowercases(one) for one in inner):
        return True
    return normalizer["type"] == "Lowercase" or normalizer.get("lowercase") is True
