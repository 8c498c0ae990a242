"""Attention with a bias by the distance between query and key, the same in all layers (MPNet, Song et al. 2020)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .attention import MASKED_SCORES, PackedRows, QuerySlots
from .builder import Value
from .positions import differences, distances_in, positions_of

BUCKETS, EXACT = 32, 8  # half of the buckets are of keys before the query, and the nearest EXACT hold a distance each
FARTHEST = 128  # the distance from which on all keys share a bucket


@dataclass(slots=True)
class RelativeRows(PackedRows):
    """Packed rows with a bias that also knows the distance."""

    def _bias(self, queries: QuerySlots, keys: Value) -> Value:
        g = self.g
        columns = (g.op("Unsqueeze", one, g.int64(axis)) for one, axis in ((queries.segments, 2), (keys, 1)))
        last = g.constant(np.int32(2 * self.parts.architecture.positions - 1))
        selected = queries.tokens is not g.input("slot_tokens", "int32", ["rows", "width"])
        distances = self._columns(distances_in(g, queries.tokens, selected=selected))
        index = g.op("Where", g.op("Equal", *columns), distances, last)
        return g.op("Transpose", g.op("Gather", self._table(), index, axis=1), perm=[1, 0, 2, 3])

    def _bias_of_one(self, states: Value) -> Value | None:
        positions = positions_of(self.g, states)
        return self.g.op("Gather", self._table(), self._columns(differences(self.g, positions, positions)), axis=1)

    def _columns(self, distances: Value) -> Value:
        """The columns of `_table` for `distances`."""
        return self.g.op("Add", distances, self.g.constant(np.int32(self.parts.architecture.positions - 1)))

    def _table(self) -> Value:
        """[heads, distances + 1]: the bias of each distance from the smallest on, and the masked score."""
        positions = self.parts.architecture.positions
        stored = self.parts.weight("relative", (BUCKETS, self.heads)).load()
        biases = stored[bucket_of(np.arange(1 - positions, positions))].T.astype(self.g.dtype)
        return self.g.constant(np.pad(biases, ((0, 0), (0, 1)), constant_values=MASKED_SCORES[self.g.dtype]))


def bucket_of(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """The buckets of keys at `distances`: as many for near keys as for those whose distance grows exponentially."""
    size = np.abs(distances)
    growth = np.log2(np.maximum(size, 1) / EXACT) / np.log2(FARTHEST / EXACT)
    far = np.minimum(EXACT + np.trunc(growth * EXACT).astype(np.int64), 2 * EXACT - 1)
    return np.asarray(np.where(size < EXACT, size, far) + np.where(distances > 0, BUCKETS // 2, 0))
