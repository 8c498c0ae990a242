"""Attention: the only place where sequences meet, so the only one that knows where a sequence ends. One class per layout of the batch.

CPU    flat [tokens, hidden] --slot_tokens--> rows [rows, width, hidden] --attention, block by block--> --token_slots--> flat
CUDA   flat [tokens, hidden] --PackedMultiHeadAttention, told the cumulative lengths--> flat
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from model_export.artifact.batch import CUMULATIVE_LENGTHS, PACKED_ROWS
from model_export.checkpoints.lazy_weight import Dense, LazyWeight, at
from model_export.graph.builder import TYPES, GraphBuilder, Value
from model_export.graph.linear import Linear

MASKED_SCORE = np.float32(-1e30)  # added to the score of a token of another sequence: its probability is exactly 0


@dataclass(frozen=True, slots=True)
class Projections:
    """A layer's products for queries, keys and values."""

    query: Dense
    key: Dense
    value: Dense

    def through(self, weight: LazyWeight, bias: LazyWeight) -> LazyWeight:
        """The bias that the product with `weight` [hidden, hidden] takes, since the values went without theirs.

        A sequence's shares add up to 1, so the values' bias reaches the context unchanged.
        """
        return at(weight, self.value[1], bias)


class Attention(Protocol):
    """softmax(Q K^T / sqrt(head size)) V per head and sequence (Vaswani et al. 2017, equation 1).

    Keys go without their bias, which adds the same to all scores of a query; values without theirs, see `Projections.through`.
    """

    def declare(self, selected: Value) -> None:
        """Makes the graph inputs; `chosen` [chosen] are the flat tokens that the last layer's answers are wanted for."""

    def context(
        self, linear: Linear, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool
    ) -> Value:
        """[asking, hidden]: what the rows `asking` gather from `everyone`; in the last layer the chosen tokens ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where the rows that ask (queries) sit in the packed attention rows, and the bias that keeps neighbours apart."""

    gather: Value  # [rows, heads, queries]: index of each query slot's head among the flat projections' heads
    back: Value  # [asking, heads]: where each asking row's head lies among the rows' heads
    bias: Value  # [rows, 1, queries, width]


@dataclass(slots=True)
class PackedRows:
    """For the CPU: short sequences side by side in rows, kept apart by a block-diagonal bias.

    Plain operators beat MultiHeadAttention here (3 times at 64 tokens a row): one Gather brings a head's numbers straight to where the
    products read them, so nothing is transposed.
    """

    g: GraphBuilder
    heads: int
    hidden: int
    _keys: Value = field(init=False)
    _values: Value = field(init=False)
    _everyone: _Places = field(init=False)
    _selected: _Places = field(init=False)

    def declare(self, selected: Value) -> None:  # noqa: ARG002 - here the queries are the chosen tokens already
        slot_tokens = self.g.input("slot_tokens", "int32", ["rows", "width"])
        token_slots = self.g.input("token_slots", "int32", ["tokens"])
        segments = self.g.input("segments", "int32", ["rows", "width"])
        query_chosen = self.g.input("query_chosen", "int32", ["rows", "queries"])
        query_segments = self.g.input("query_segments", "int32", ["rows", "queries"])
        chosen_slots = self.g.input("chosen_slots", "int32", ["chosen"])
        with self.g.scope("places"):
            self._keys, self._values = self._spread(slot_tokens, of=2, part=0), self._spread(slot_tokens, of=2, part=1)
            for name, tokens, slots, asked in (
                ("_everyone", slot_tokens, token_slots, segments),
                ("_selected", query_chosen, chosen_slots, query_segments),
            ):
                places = _Places(
                    gather=self._spread(tokens), back=self._back(slots, tokens), bias=self._bias(asked, segments)
                )
                setattr(self, name, places)

    def context(
        self, linear: Linear, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool
    ) -> Value:
        g, places = self.g, self._selected if last else self._everyone
        with g.scope("query"):
            query = self._heads(linear.affine(g, query_states, *projections.query), places.gather)
        with g.scope("key_value"):
            both = linear.product(g, key_value_states, stacked(projections.key[0], projections.value[0]))
            key, value = self._heads(both, self._keys), self._heads(both, self._values)
        scores = g.contrib("FusedMatMul", query, key, transB=1, alpha=(self.hidden // self.heads) ** -0.5)
        shares = g.op("Softmax", g.op("Add", scores, places.bias), axis=-1)
        context = self._heads(g.op("MatMul", shares, value), places.back)
        return g.op("Reshape", context, g.constant(np.array([-1, self.hidden], np.int64)))

    def _heads(self, x: Value, index: Value) -> Value:
        """The heads of `x` that `index` names, in its shape; [..., head size]."""
        heads = self.g.op("Reshape", x, self.g.constant(np.array([-1, self.hidden // self.heads], np.int64)))
        return self.g.op("Gather", heads, index, axis=0)

    def _spread(self, tokens: Value, *, of: int = 1, part: int = 0) -> Value:
        """[rows, heads, slots] out of the flat index [rows, slots]: where each head lies in the `part`-th of `of` products side by side."""
        g = self.g
        first = g.op("Mul", g.op("Unsqueeze", tokens, g.constant(np.array([1]))), g.constant(np.int32(of * self.heads)))
        return g.op(
            "Add", first, g.constant(np.arange(part * self.heads, (part + 1) * self.heads, dtype=np.int32)[:, None])
        )

    def _back(self, slots: Value, rows: Value) -> Value:
        """[asking, heads] out of the slots [asking]: a row's heads lie one after another, each with all of the row's slots."""
        g = self.g
        width = g.op("Cast", g.op("Shape", rows, start=1), to=int(TYPES["int32"]))
        row = g.op("Div", slots, width)
        first = g.op("Add", slots, g.op("Mul", row, g.op("Mul", width, g.constant(np.int32(self.heads - 1)))))
        steps = g.op("Mul", g.constant(np.arange(self.heads, dtype=np.int32)), width)
        return g.op("Add", g.op("Unsqueeze", first, g.constant(np.array([1]))), steps)

    def _bias(self, queries: Value, keys: Value) -> Value:
        """0 where query and key belong to one sequence, NEVER elsewhere; [rows, 1, queries, width], shared by heads and layers."""
        g = self.g
        with g.scope("bias"):
            same = g.op(
                "Equal",
                g.op("Unsqueeze", queries, g.constant(np.array([1, 3]))),
                g.op("Unsqueeze", keys, g.constant(np.array([1, 2]))),
            )
            return g.op("Where", same, g.constant(np.float32(0)), g.constant(MASKED_SCORE))


def stacked(first: LazyWeight, second: LazyWeight) -> LazyWeight:
    """The rows of both, one after the other."""
    shape = (first.shape[0] + second.shape[0], *first.shape[1:])
    return LazyWeight(
        shape,
        lambda: np.concatenate([first.load(), second.load()]),
        f"{first.origin} and {second.origin}" if first.origin else "",
    )


@dataclass(slots=True)
class CumulativeLengths:
    """For CUDA: separate Q, K and V and no bias, which the flash kernel (fp16) and the memory-efficient one (fp32) read where they lie.

    With a bias all three are copied first, into a workspace as large as the padded batch (BERT-base in fp16, a text of 512 tokens beside
    2,560 of 3: 7.4 GB in all instead of 0.5).
    """

    g: GraphBuilder
    heads: int
    hidden: int
    _chosen: Value = field(init=False)
    _offset: Value = field(init=False)
    _lengths: Value = field(init=False)

    def declare(self, selected: Value) -> None:
        self._chosen = selected
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
        with g.scope("query"):
            query = linear.affine(g, key_value_states, *projections.query)
        with g.scope("key"):
            key = linear.product(g, key_value_states, projections.key[0])
        with g.scope("value"):
            value = linear.product(g, key_value_states, projections.value[0])
        context = g.contrib(
            "PackedMultiHeadAttention", query, key, value, None, self._offset, self._lengths, num_heads=self.heads
        )
        return g.op("Gather", context, self._chosen, axis=0) if last else context


LAYOUTS: dict[str, type[PackedRows] | type[CumulativeLengths]] = {
    PACKED_ROWS: PackedRows,
    CUMULATIVE_LENGTHS: CumulativeLengths,
}
