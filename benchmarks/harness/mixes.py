"""What is measured: mixes of lengths, in tokens per text with the special tokens.

The lists and seeds are fixed, so that runs can be compared.
"""

import math

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Tokens

# 64 quantiles of the lengths of the 17,256 sentences of STS-B under BERT's uncased vocabulary:
# mean 14.7, median 12, longest 70
STS_B_REPEATED = {7: 2, 8: 5, 9: 8, 10: 7, 11: 7, 12: 5, 13: 5, 14: 3, 15: 3, 16: 2, 17: 2, 20: 2}
STS_B_ONCE = [18, 19, 21, 22, 23, 24, 26, 27, 29, 31, 33, 35, 39]
STS_B = sorted([*STS_B_ONCE, *(length for length, count in STS_B_REPEATED.items() for _ in range(count))])


def passages(count: int, *, mean: float = 75.0, deviation: float = 45.0, longest: float = 512) -> list[int]:
    """Log-normal lengths like those of MS MARCO's passages."""
    variance = math.log(1 + (deviation / mean) ** 2)
    drawn = np.random.default_rng(1).lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)
    return [int(n) for n in np.clip(np.rint(drawn), 3, longest)]


def shuffled(lengths: list[int], seed: int = 2) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).permutation(lengths)]


MIXES: dict[str, list[int]] = {
    "equal: 8 of 128": [128] * 8,
    "mixed: 32 of 5..60": [int(n) for n in np.random.default_rng(3).integers(5, 61, 32)],
    "STS-B: 64 sentences": shuffled(STS_B),
    "passages: 16 like MS MARCO": passages(16),
    "documents: 3 of 512": [512] * 3,
    "long tail: 1 of 300, 31 of 12": shuffled([300] + [12] * 31),
    "longest: 1 of 512, 31 of 12": shuffled([512] + [12] * 31),
    "alone: 1 of 16": [16],
    "alone: 1 of 128": [128],
}


def texts(
    lengths: list[int], *, vocabulary: int, outputs: frozenset[str] = frozenset({"cls"}), seed: int = 4
) -> list[Tokens]:
    """Random ids of these lengths; every text asks for `outputs`, fill-mask for one mask at its second token."""
    random = np.random.default_rng(seed)
    masks = (1,) if "top_ids" in outputs else ()
    return [
        Tokens(
            ids=ids(random, n, vocabulary),
            types=np.zeros(n, np.int32),
            outputs=outputs,
            masks=masks,
            top_k=5 if masks else 1,
        )
        for n in lengths
    ]


def ids(random: np.random.Generator, length: int, vocabulary: int) -> NDArray[np.int32]:
    return random.integers(5, vocabulary, length, dtype=np.int32)
