"""Attention for CUDA: flat [tokens, hidden] --PackedMultiHeadAttention with the cumulative lengths--> flat."""

from dataclasses import dataclass, field
from typing import ClassVar

from model_export.artifact.manifest import CUMULATIVE_LENGTHS
from model_export.graph.attention import Projections, attention_probabilities
from model_export.graph.builder import OPSET, GraphBuilder, Value
from model_export.graph.linear import Linear


@dataclass(slots=True)
class CumulativeLengths:
    """Separate Q, K and V without bias, which the flash (fp16) and the memory-efficient (fp32) kernel expect.

    With a bias all three are copied first, to a workspace as large as the padded batch (BERT-base in fp16, a text of
    512 tokens beside 2,560 of 3: 7.4 GB in all instead of 0.5).
    """

    layout: ClassVar[str] = CUMULATIVE_LENGTHS
    opset: ClassVar[int] = OPSET
    g: GraphBuilder
    heads: int
    hidden: int
    _selected: Value = field(init=False)
    _offset: Value = field(init=False)
    _lengths: Value = field(init=False)

    def declare(self, selected: Value) -> None:
        self._selected = selected
        self._offset = self.g.input("token_offset", "int32", ["all_sequences", "longest"])
        self._lengths = self.g.input("cumulative_lengths", "int32", ["all_sequences + 1"])

    def context(
        self,
        linear: Linear,
        projections: Projections,
        query_states: Value,  # noqa: ARG002
        key_value_states: Value,
        *,
        last: bool,
    ) -> Value:
        g = self.g
        query, key, value = (
            project(linear, projections, key_value_states) for project in (self._query, self._key, self._value)
        )
        inputs = (query, key, value, None, self._offset, self._lengths)
        context = g.contrib("PackedMultiHeadAttention", *inputs, num_heads=self.heads)
        return g.op("Gather", context, self._selected, axis=0) if last else context

    def probabilities(self, linear: Linear, projections: Projections, states: Value) -> Value:
        query, key = (project(linear, projections, states) for project in (self._query, self._key))
        return attention_probabilities(self.g, query, key, self.heads, self.hidden)

    def _query(self, linear: Linear, projections: Projections, states: Value) -> Value:
        with self.g.scope("query"):
            return linear.affine(self.g, states, *projections.query)

    def _key(self, linear: Linear, projections: Projections, states: Value) -> Value:
        with self.g.scope("key"):
            return linear.product(self.g, states, projections.key[0])

    def _value(self, linear: Linear, projections: Projections, states: Value) -> Value:
        with self.g.scope("value"):
            return linear.product(self.g, states, projections.value[0])
