"""Attention whose queries and keys are turned by their positions (Su et al. 2021)."""

import numpy as np
from numpy.typing import NDArray

from ..architecture import Rotary
from .attention import Projections
from .blocks import DistanceRows
from .builder import TYPES, Value
from .positions import positions_in


class RotaryRows(DistanceRows):
    """Rows whose queries and keys are turned."""

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """`x` turned by `positions`; [tokens, 1, hidden]."""
        g, sizes = self.g, self.parts.architecture
        rotary = sizes.rotary[layer]
        if rotary.is_stored:
            table = self.parts.weight("turns", (sizes.positions, sizes.head_size)).load()
            sines, cosines = np.split(table, 2, axis=1)
        else:
            angle = angles(rotary, sizes.positions, sizes.head_size)
            sines, cosines = np.sin(angle), np.cos(angle)
        tables = (g.constant(table.astype(g.dtype)) for table in (cosines, sines))
        one = g.int64(1)
        turns = g.op("Unsqueeze", g.op("Cast", positions, to=int(TYPES["int64"])), one)
        inputs = (g.op("Unsqueeze", x, one), turns, *tables)
        return g.contrib("RotaryEmbedding", *inputs, interleaved=int(rotary.is_stored))

    def _values_of(self, projections: Projections, states: Value) -> Value:
        layer = projections.layer
        if not self.parts.architecture.rotary[layer].turns_values:
            return DistanceRows._values_of(self, projections, states)
        return self._prepare("value", self.linear.affine(states, *projections.value), layer, positions_in(self.g))


def angles(rotary: Rotary, positions: int, size: int) -> NDArray[np.float64]:
    """[positions, size / 2] in float64; computed in float32, in which the models were trained."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = np.power(rotary.theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers / np.float32(rotary.divisor)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float64)
