"""The attention probabilities of a written artifact, as the service computes them, compared with the reference's."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Tokens, pack, split
from model_export.artifact.feeds.layers import attention_name, hidden_name
from model_export.errors import PrecisionError
from model_export.verification.graphs import Graph
from model_export.verification.reference import Doubles

MAX_DISTANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05, "int8": 0.5}  # of total variation; a wrong weight is above it


def attention_error(
    encoder: Graph,
    attention: Graph,
    sequences: Sequence[NDArray[np.int32]],
    expected: Sequence[Doubles],
    *,
    layout: str,
    modes: Sequence[str],
    precision: str,
) -> float:
    """The largest error of a probability: `expected` is [layers, heads, length, length] of each sequence.

    `layout` and `modes` are those of `pack`. Raises PrecisionError where the probabilities are not the checkpoint's.
    """
    layers = tuple(range(len(expected[0])))
    tokens = [
        Tokens(ids=ids, types=np.zeros(len(ids), np.int32), outputs=frozenset({"attention"}), layers=layers)
        for ids in sequences
    ]
    batch = pack(tokens, layout, modes)
    names = sorted(batch.outputs)
    results = encoder.run(names, batch.feeds)
    largest = distance = 0.0
    for row, want in zip(split(batch, dict(zip(names, results, strict=True))), expected, strict=True):
        feeds = {hidden_name(layer): states for layer, states in zip(layers, row["attention"], strict=True)}
        got = np.stack(attention.run([attention_name(layer) for layer in layers], feeds))
        errors = np.abs(got.astype(np.float64) - want)
        largest = float(np.maximum(largest, errors.max()))  # NaN stays
        distance = float(np.maximum(distance, errors.sum(axis=-1).mean() / 2))
    if not distance <= MAX_DISTANCE[precision]:
        raise PrecisionError(
            f"the written {precision} artifact does not compute the checkpoint's attention: the distance of its "
            f"probabilities to the float64 reference is {distance:.3g}, at most {MAX_DISTANCE[precision]} is expected"
        )
    return largest
