"""Attention for CUDA in standard operators, for a GPU that PackedMultiHeadAttention does not work on.

flat [tokens, hidden] --slot_tokens--> [rows, heads, width, head size] --attention per block--> --token_slots--> flat

It reads the CPU's rows of several short sequences, and the weights of the packed graph. Whole tokens are gathered and
heads transposed, where the CPU gathers heads: the CPU's indices need the width of a row, and ONNX Runtime computes with
a shape on the host (`GetCpuPreferredNodes`), which a CUDA session refuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from model_export.artifact.manifest import PACKED_ROWS
from model_export.graph.attention import Projections, separating_bias
from model_export.graph.builder import Value
from model_export.graph.cuda_attention import CumulativeLengths
from model_export.graph.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Where the query states are in the rows, and the bias that separates sequences."""

    tokens: Value  # [rows, queries]: the query states in each row
    slots: Value  # [queries]: the slot of each query state
    bias: Value  # [rows, 1, queries, width]


@dataclass(slots=True)
class PlainRows(CumulativeLengths):
    """The projections and probabilities are those of the packed graph; the context is computed row by row."""

    layout: ClassVar[str] = PACKED_ROWS
    _keys: Value = field(init=False)
    _all: _Rows = field(init=False)
    _last: _Rows = field(init=False)

    def declare(self, selected: Value) -> None:  # noqa: ARG002 - in this layout the query states are selected already
        g = self.g
        self._keys = g.input("slot_tokens", "int32", ["rows", "width"])
        token_slots = g.input("token_slots", "int32", ["tokens"])
        segments = g.input("segments", "int32", ["rows", "width"])
        query_chosen = g.input("query_chosen", "int32", ["rows", "queries"])
        query_segments = g.input("query_segments", "int32", ["rows", "queries"])
        chosen_slots = g.input("chosen_slots", "int32", ["chosen"])
        with g.scope("places"):
            bias, last_bias = (separating_bias(g, queries, segments) for queries in (segments, query_segments))
        self._all = _Rows(tokens=self._keys, slots=token_slots, bias=bias)
        self._last = _Rows(tokens=query_chosen, slots=chosen_slots, bias=last_bias)

    def context(
        self, linear: Linear, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool
    ) -> Value:
        g, rows = self.g, self._last if last else self._all
        query = self._split_heads(self._query(linear, projections, query_states), rows.tokens)
        key = self._split_heads(self._key(linear, projections, key_value_states), self._keys)
        value = self._split_heads(self._value(linear, projections, key_value_states), self._keys)
        scores = g.contrib("FusedMatMul", query, key, transB=1, alpha=(self.hidden // self.heads) ** -0.5)
        probabilities = g.op("Softmax", g.op("Add", scores, rows.bias), axis=-1)
        context = g.op("Transpose", g.op("MatMul", probabilities, value), perm=[0, 2, 1, 3])
        flat = g.op("Reshape", context, g.constant(np.array([-1, self.hidden], np.int64)))
        return g.op("Gather", flat, rows.slots, axis=0)

    def _split_heads(self, x: Value, tokens: Value) -> Value:
        """The rows `tokens` [rows, slots] of `x` [tokens, hidden]: [rows, heads, slots, head size]."""
        shape = np.array([0, 0, self.heads, self.hidden // self.heads], np.int64)  # 0: as many rows, as many slots
        rows = self.g.op("Reshape", self.g.op("Gather", x, tokens, axis=0), self.g.constant(shape))
        return self.g.op("Transpose", rows, perm=[0, 2, 1, 3])


PLAIN_ATTENTION: Mapping[str, type[PlainRows]] = {"cuda": PlainRows}  # the devices that have a second graph
