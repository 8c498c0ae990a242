"""Attention with a bias by the distance between query and key, the same in all layers (MPNet, Song et al. 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from packbert.model_export.graph.attention import (
    MASKED_SCORES,
    Attention,
    Bf16PackedRows,
    CumulativeLengths,
    FusedPackedRows,
    PackedRows,
    PlainRows,
)
from packbert.model_export.graph.builder import TYPES, Value
from packbert.model_export.graph.positions import positions_of

BUCKETS, EXACT = 32, 8  # half of the buckets are of keys before the query, and the nearest EXACT are one distance each
FARTHEST = 128  # the distance from which on all keys share a bucket


@dataclass(slots=True)
class RelativeRows(PackedRows):
    """As PackedRows, with a bias that also knows the positions."""

    def _bias(self, tokens: Value, queries: Value, keys: Value) -> Value:
        g = self.g
        positions = g.input("positions", "int32", ["tokens"])
        slot_tokens = g.input("slot_tokens", "int32", ["rows", "width"])
        selected = g.op("Gather", positions, g.input("chosen", "int32", ["chosen"]), axis=0)
        of_query = g.op("Gather", positions if tokens is slot_tokens else selected, tokens, axis=0)
        index = self._indices(of_query, g.op("Gather", positions, slot_tokens, axis=0), axis=2)
        axes = (g.constant(np.array([axis])) for axis in (2, 1))
        same = g.op("Equal", *(g.op("Unsqueeze", one, axis) for one, axis in zip((queries, keys), axes, strict=True)))
        index = g.op("Where", same, index, g.constant(np.int32(2 * self.parts.architecture.positions - 1)))
        return g.op("Transpose", g.op("Gather", self._table(), index, axis=1), perm=[1, 0, 2, 3])

    def _bias_of_one(self, states: Value) -> Value | None:
        positions = self.g.op("Cast", positions_of(self.g, states), to=int(TYPES["int32"]))
        return self.g.op("Gather", self._table(), self._indices(positions, positions, axis=1), axis=1)

    def _indices(self, queries: Value, keys: Value, *, axis: int) -> Value:
        """The column of `_table` for each query and key: from positions [..., n] to [..., queries, keys]."""
        g = self.g
        column = g.op("Unsqueeze", queries, g.constant(np.array([axis])))
        distance = g.op("Sub", g.op("Unsqueeze", keys, g.constant(np.array([axis - 1]))), column)
        return g.op("Add", distance, g.constant(np.int32(self.parts.architecture.positions - 1)))

    def _table(self) -> Value:
        """[heads, distances + 1]: the bias of each distance from the smallest on, and the masked score."""
        positions = self.parts.architecture.positions
        stored = self.parts.weight("relative", (BUCKETS, self.heads)).load()
        biases = stored[bucket_of(np.arange(1 - positions, positions))].T.astype(self.g.dtype)
        return self.g.constant(np.pad(biases, ((0, 0), (0, 1)), constant_values=MASKED_SCORES[self.g.dtype]))


def bucket_of(distances: np.ndarray) -> np.ndarray:
    """The buckets of keys at `distances`: as many for near keys as for those whose distance grows exponentially."""
    size = np.abs(distances)
    growth = np.log2(np.maximum(size, 1) / EXACT) / np.log2(FARTHEST / EXACT)
    far = np.minimum(EXACT + np.trunc(growth * EXACT).astype(np.int64), 2 * EXACT - 1)
    return np.where(size < EXACT, size, far) + np.where(distances > 0, BUCKETS // 2, 0)


class FusedRelativeRows(RelativeRows, FusedPackedRows):
    """As FusedPackedRows."""


class Bf16RelativeRows(RelativeRows, Bf16PackedRows):
    """As Bf16PackedRows."""


class PlainRelativeRows(RelativeRows, PlainRows):
    """As PlainRows; the kernels of PackedMultiHeadAttention that take a bias pad every text to the longest."""


RELATIVE: Mapping[type[Attention], type[Attention]] = {  # in place of the attention of a BERT
    PackedRows: RelativeRows,
    FusedPackedRows: FusedRelativeRows,
    Bf16PackedRows: Bf16RelativeRows,
    CumulativeLengths: PlainRelativeRows,
    PlainRows: PlainRelativeRows,
}
