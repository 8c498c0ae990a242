"""Tokenizers of the same model that differ in the special tokens that they read in a text."""

from collections.abc import Collection
from itertools import groupby

from tokenizers import Tokenizer as HFTokenizer


def reading_only(tokenizer: HFTokenizer, read: Collection[int]) -> HFTokenizer:
    """A tokenizer that shares the model of `tokenizer`, and of the special tokens reads only those with the ids `read`.

    In it these are no special tokens, so that `encode_special_tokens` does not make them text.
    """
    made = HFTokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(made, part, getattr(tokenizer, part))
    tokens = sorted(tokenizer.get_added_tokens_decoder().items())
    for token_id, token in tokens:
        token.special = token.special and token_id not in read
    for special, group in groupby((token for _, token in tokens), lambda token: token.special):
        add = made.add_special_tokens if special else made.add_tokens
        add(list(group))
    made.encode_special_tokens = True
    return made
