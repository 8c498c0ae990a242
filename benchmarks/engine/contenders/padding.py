"""Padded batches, and the vectors of their texts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]  # [length]
Vectors = NDArray[np.float32]  # [texts, hidden]
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
CLS, MEAN = "cls", "mean"


def pad(texts: Sequence[Ids]) -> dict[str, NDArray[np.int64]]:
    """A padded batch: arrays [texts, longest] by input name."""
    longest = max(map(len, texts))
    batch = {name: np.zeros((len(texts), longest), np.int64) for name in INPUTS}
    for i, ids in enumerate(texts):
        batch["input_ids"][i, : len(ids)] = ids
        batch["attention_mask"][i, : len(ids)] = 1
    return batch


def pooled(hidden: NDArray[np.float32], texts: Sequence[Ids], pooling: str) -> Vectors:
    """The vectors of `texts` from their padded hidden states [texts, longest, hidden]: of [CLS], or the mean."""
    if pooling == CLS:
        return hidden[:, 0]
    return np.stack([states[: len(ids)].mean(axis=0) for states, ids in zip(hidden, texts, strict=True)])
