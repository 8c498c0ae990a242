"""What ColBERT and BGE-M3 make of each token's state, and how they read queries and documents."""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .architecture import Architecture
from .artifact.manifest import SENTENCE_SETTINGS, TOKEN_WEIGHTS, Side
from .checkpoint import Checkpoint, optional_json
from .errors import ExportError
from .facts import METADATA, read_fact
from .sentence import (
    PYLATE,
    Dense,
    Layer,
    SentenceModel,
    UnitLength,
    read_dense,
    read_linear,
    sentence_model,
)
from .tokenizer import MIN_TOKENS, TokenizerFiles

DEFAULTS: Mapping[str, Any] = {  # of PyLate's settings
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
}
STANFORD = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "document_length": 220}  # other defaults
PROJECTION = "linear.weight"  # of Stanford's ColBERT, among the weights of the encoder


def embedding_model(checkpoint: Checkpoint, sizes: Architecture, *, without_modules: bool = False) -> SentenceModel:
    """The `sentence_model` of the checkpoint with what is made of single tokens."""
    model, root = sentence_model(checkpoint, sizes.hidden, without_modules=without_modules), checkpoint.root
    modules, width, defaults, files = checkpoint.modules, sizes.hidden, DEFAULTS, dict(checkpoint.files)
    if PROJECTION in checkpoint.names:
        path, width = root / METADATA, checkpoint.shape(PROJECTION)[0]
        files[METADATA] = found = optional_json(path)
        if found.get("similarity", "cosine") != "cosine":
            raise ExportError(f"{path} sets similarity to {found['similarity']!r}; only 'cosine' is computed")
        defaults = {**DEFAULTS, **STANFORD}
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
    settings = {key: read_fact(key, files, checkpoint.assumed) for key in DEFAULTS}
    settings = {key: defaults[key] if value is None else value for key, value in settings.items()}
    for key, value in settings.items():
        if type(value) is not type(DEFAULTS[key]) or (key.endswith("_length") and value < MIN_TOKENS):
            raise ExportError(f"{path} sets {key} to {value!r}; it must be a value like {DEFAULTS[key]!r}")
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
