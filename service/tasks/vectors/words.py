"""The words of a text as its tokenizer splits them, and the mean of the vectors of a word's pieces."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from service.tasks.base import Tasks
from service.tokenization.encoding import EncodedText
from service.tokenization.token_details import describe_tokens


async def find_words(tasks: Tasks, texts: Sequence[str], sequences: Sequence[EncodedText]) -> list[list[slice]]:
    """The tokens of each word of each text, in the order of the text; special tokens belong to none.

    `sequences` have spans, and may be cut. A word is what the tokenizer's pre-tokenizer makes, as transformers'
    `word_ids`: in Chinese a character, where the tokenizer splits them.
    """
    described = await describe_tokens(tasks.tokenizer, texts, special_tokens=False, masks=False)
    words = []
    for tokens, details in zip(sequences, described, strict=True):
        word_of = dict(zip(details.spans, details.words, strict=True))
        numbers = [None if start < 0 else word_of[start, end] for start, end in tokens.spans.tolist()]
        groups = groupby(range(len(numbers)), key=numbers.__getitem__)
        ranges = [(number, list(group)) for number, group in groups]
        words.append([slice(own[0], own[-1] + 1) for number, own in ranges if number is not None])
    return words


def average_words(states: NDArray[np.generic], words: Sequence[slice]) -> NDArray[np.float32]:
    """The mean of the vectors of each word's tokens: [..., tokens, width] to [..., words, width]."""
    means = [states[..., word, :].mean(axis=-2, dtype=np.float64) for word in words]
    return np.stack(means, axis=-2).astype(np.float32)
