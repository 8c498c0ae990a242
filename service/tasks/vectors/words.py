"""The words of a text as its tokenizer splits them, and the mean of the vectors of a word's pieces."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.tokenization.encoding import EncodedText
from service.tokenization.token_details import TokenDetails


def find_words(tokens: EncodedText, details: TokenDetails) -> list[slice]:
    """The tokens of each word of a text, in its order; special tokens belong to none.

    `tokens` have spans, and may be cut on a side; `details` are the whole text's, without special tokens. A word is
    what the tokenizer's pre-tokenizer makes, as transformers' `word_ids`: in Chinese a character, where the tokenizer
    splits them.
    """
    own = np.flatnonzero(tokens.spans[:, 0] >= 0)
    is_start = np.array_equal(details.spans[: len(own)], tokens.spans[own])
    words = details.words[: len(own)] if is_start else details.words[len(details) - len(own) :]
    numbers = np.full(len(tokens), -1)
    numbers[own] = words
    firsts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    ends = np.append(firsts[1:], len(numbers))
    found = numbers[firsts] >= 0
    return list(map(slice, firsts[found].tolist(), ends[found].tolist()))


def average_words(states: NDArray[np.generic], words: Sequence[slice]) -> NDArray[np.float32]:
    """The mean of the vectors of each word's tokens: [..., tokens, width] to [..., words, width]."""
    means = [states[..., word, :].mean(axis=-2, dtype=np.float64) for word in words]
    return np.stack(means, axis=-2).astype(np.float32)
