"""The facts that several files of a checkpoint can state, with the order in which the libraries read them."""

from collections.abc import Mapping
from typing import Any

from .artifact.manifest import SENTENCE_SETTINGS, TOKENIZER

CONFIG, TOKENIZER_CONFIG, TOKENS_MAP = "config.json", "tokenizer_config.json", "special_tokens_map.json"
ENCODER_CONFIG = "sentence_bert_config.json"  # of sentence-transformers' module Transformer, under its usual name
METADATA = "artifact.metadata"  # of Stanford's ColBERT
NORMALIZER = {  # tokenizer_config.json's flags -> BertNormalizer's attributes
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
COLBERT = {  # PyLate's settings -> Stanford's
    "query_prefix": "query_token_id",
    "document_prefix": "doc_token_id",
    "query_length": "query_maxlen",
    "document_length": "doc_maxlen",
    "attend_to_expansion_tokens": "attend_to_mask_tokens",
}
FACTS: Mapping[str, tuple[tuple[str, str], ...]] = {  # fact -> file and key, in order: the first that states it counts
    "activation_fn": (  # of a CrossEncoder
        (SENTENCE_SETTINGS, "activation_fn"),
        (CONFIG, "sentence_transformers.activation_fn"),
        (CONFIG, "sbert_ce_default_activation_function"),
    ),
    "max_seq_length": ((ENCODER_CONFIG, "max_seq_length"), (TOKENIZER_CONFIG, "model_max_length")),
    "tokenizer_class": ((TOKENIZER_CONFIG, "tokenizer_class"), (CONFIG, "tokenizer_class")),
    **{
        f"{name}_token": ((TOKENS_MAP, f"{name}_token"), (TOKENIZER_CONFIG, f"{name}_token"))
        for name in ("cls", "sep", "mask", "pad", "unk", "bos", "eos")
    },
    **{key: ((TOKENIZER_CONFIG, key), (TOKENIZER, ours)) for key, ours in NORMALIZER.items()},
    "do_lower_case": ((ENCODER_CONFIG, "do_lower_case"), (TOKENIZER_CONFIG, "do_lower_case"), (TOKENIZER, "lowercase")),
    "add_prefix_space": ((TOKENIZER_CONFIG, "add_prefix_space"), (TOKENIZER, "add_prefix_space")),
    **{ours: ((SENTENCE_SETTINGS, ours), (METADATA, theirs)) for ours, theirs in COLBERT.items()},
    **{ours: ((SENTENCE_SETTINGS, ours),) for ours in ("do_query_expansion", "skiplist_words")},
}
Files = Mapping[str, Mapping[str, Any]]  # the contents of those that are there


def read_fact(fact: str, files: Files, assumed: dict[str, str]) -> Any:
    """What the first of the files states; None if none does. `assumed` reports a file that states something else."""
    stated = [(file, _value(files.get(file, {}), key)) for file, key in FACTS[fact]]
    stated = [(file, value) for file, value in stated if value is not None]
    for file, value in stated[1:]:
        if value != stated[0][1]:
            assumed[fact] = f"{stated[0][1]}, of {stated[0][0]}; {file} states {value}"
    return stated[0][1] if stated else None


def _value(content: Any, key: str) -> Any:
    """The value at a path of keys; for a token with flags, its spelling."""
    for name in key.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content["content"] if isinstance(content, Mapping) and "content" in content else content
