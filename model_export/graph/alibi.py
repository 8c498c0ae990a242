"""Attention with a bias that falls with the distance (ALiBi, Press et al. 2022) to both sides (JinaBERT v2)."""

import numpy as np
from numpy.typing import NDArray

from .blocks import DistanceRows
from .builder import TYPES, Value
from .linear import normalized


class AlibiRows(DistanceRows):
    """Rows with ALiBi's bias."""

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """`x`, or its LayerNorm if the family has that norm."""
        if not self.parts.knows(f"{part}_norm"):
            return x
        return normalized(self.g, self.parts, f"{part}_norm", x, self.hidden, layer=layer)

    def _reads_distances(self, window: int) -> bool:  # noqa: ARG002
        return True

    def _bias_at(self, window: int, bias: Value, distances: Value) -> Value:  # noqa: ARG002
        g = self.g
        size = g.op("Max", distances, g.op("Mul", distances, g.constant(np.int32(-1))))  # not Abs: see `within`
        fall = g.constant(-slopes(self.heads)[:, None, None].astype(g.dtype))
        return g.op("Add", g.op("Mul", g.op("Cast", size, to=int(TYPES[g.dtype])), fall), bias)


def slopes(heads: int) -> NDArray[np.float64]:
    """[heads]: what a head's scores lose with each token of distance.

    Powers of 2 in equal steps down to 2^-8; if `heads` is no power of 2, the rest are from the steps of half that
    size.
    """
    even = 1 << (heads.bit_length() - 1)
    whole, half = np.arange(1, even + 1), np.arange(1, 2 * (heads - even), 2) / 2
    return np.asarray(2.0 ** (-8 / even * np.concatenate([whole, half])))
