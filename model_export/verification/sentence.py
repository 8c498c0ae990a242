"""A checkpoint's own vector of a text in NumPy and float64; shares no code with the graph."""

from collections.abc import Callable

import numpy as np

from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.checkpoints.sentence_modules import Dense, LayerNorm, SentenceModel
from model_export.verification.reference import ACTIVATIONS, Doubles


def sigmoid(x: Doubles) -> Doubles:
    return 1.0 / (1.0 + np.exp(-x))


OF_VECTORS: dict[str, Callable[[Doubles], Doubles]] = {
    **ACTIVATIONS,
    "": lambda x: x,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
}


def sentence_vector(hidden: Doubles, model: SentenceModel) -> Doubles:
    """The vector [width] of one text without a prompt, before a Normalize at the end: `hidden` is [length, channels].

    The formulas are those of sentence-transformers' modules Pooling, Dense, LayerNorm and Normalize.
    """
    length = len(hidden)
    position = np.arange(1, length + 1)[:, None]
    pooled = {
        "cls": hidden[0],
        "max": hidden.max(axis=0),
        "mean": hidden.mean(axis=0),
        "mean_sqrt_len_tokens": hidden.sum(axis=0) / np.sqrt(length),
        "weightedmean": (hidden * position).sum(axis=0) / position.sum(),
        "lasttoken": hidden[-1],
    }
    x = np.concatenate([pooled[mode] for mode in model.modes])
    for layer in model.layers:
        if isinstance(layer, Dense):
            bias = 0.0 if layer.bias is None else _doubles(layer.bias)
            added = 0.0 if not layer.residual else x
            if layer.residual_weight is not None:
                added = _doubles(layer.residual_weight) @ x
            x = OF_VECTORS[layer.activation](_doubles(layer.weight) @ x + bias) + added
        elif isinstance(layer, LayerNorm):
            centred = x - x.mean()
            x = centred / np.sqrt((centred**2).mean() + layer.epsilon) * _doubles(layer.weight) + _doubles(layer.bias)
        else:
            x = x / max(float(np.linalg.norm(x)), 1e-12)
    return x


def _doubles(weight: LazyWeight) -> Doubles:
    return weight.load().astype(np.float64)
