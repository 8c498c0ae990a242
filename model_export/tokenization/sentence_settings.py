"""What a sentence-transformers checkpoint says of its tokenizer: the length limit and lower case."""

import json

from tokenizers import normalizers

from model_export.checkpoints.sentence_modules import SentenceModel
from model_export.tokenization.tokenizer_files import TokenizerFiles


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
