"""Attention: the only place where sequences meet, so the only one that knows where a sequence ends. One class per layout of the batch.

CPU    flat [tokens, hidden] --slot_tokens--> rows [rows, width, hidden] --MultiHeadAttention + bias--> --token_slots--> flat
CUDA   flat [tokens, hidden] --PackedMultiHeadAttention, told the cumulative lengths--> flat
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from model_export.batch import CUMULATIVE_LENGTHS, PACKED_ROWS
from model_export.graph import Graph, Value

NEVER = np.float32(-1e30)  # added to the score of a token of another sequence: its probability is exactly 0


class Attention(Protocol):
    """softmax(Q K^T / sqrt(head size)) V per head and sequence (Vaswani et al. 2017, equation 1)."""

    every_query: bool  # whether the last layer, too, must be given the queries of all tokens

    def declare(self, chosen: Value) -> None:
        """Makes the graph inputs; `chosen` [chosen] are the flat tokens that the last layer's answers are wanted for."""

    def context(self, query: Value, key: Value, value: Value, bias: Value, *, last: bool) -> Value:
        """[asking, hidden] from flat projections without their biases (`bias` [3 * hidden]); in the last layer the chosen tokens ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where the rows that ask (queries) sit in the packed attention rows, and the bias that keeps neighbours apart."""

    gather: Value  # [rows, queries] flat index of each query slot
    back: Value  # [asking] slot of each asking row
    bias: Value  # [rows, 1, queries, width]


@dataclass(slots=True)
class PackedRows:
    """For the CPU: short sequences side by side in rows, kept apart by a block-diagonal bias."""

    g: Graph
    heads: int
    hidden: int
    every_query: bool = False
    _slot_tokens: Value = field(init=False)
    _everyone: _Places = field(init=False)
    _selected: _Places = field(init=False)

    def declare(self, chosen: Value) -> None:  # noqa: ARG002 - here the queries are the chosen tokens already
        slot_tokens = self.g.input("slot_tokens", "int32", ["rows", "width"])
        token_slots = self.g.input("token_slots", "int32", ["tokens"])
        segments = self.g.input("segments", "int32", ["rows", "width"])
        query_chosen = self.g.input("query_chosen", "int32", ["rows", "queries"])
        query_segments = self.g.input("query_segments", "int32", ["rows", "queries"])
        chosen_slots = self.g.input("chosen_slots", "int32", ["chosen"])
        self._slot_tokens = slot_tokens
        self._everyone = _Places(gather=slot_tokens, back=token_slots, bias=self._bias(segments, segments))
        self._selected = _Places(gather=query_chosen, back=chosen_slots, bias=self._bias(query_segments, segments))

    def context(self, query: Value, key: Value, value: Value, bias: Value, *, last: bool) -> Value:
        g, places = self.g, self._selected if last else self._everyone
        rows = [g.op("Gather", flat, where, axis=0) for flat, where in ((query, places.gather), (key, self._slot_tokens), (value, self._slot_tokens))]
        context = g.contrib("MultiHeadAttention", *rows, bias, None, places.bias, num_heads=self.heads)
        flat = g.op("Reshape", context, g.constant(np.array([-1, self.hidden], np.int64)))
        return g.op("Gather", flat, places.back, axis=0)

    def _bias(self, queries: Value, keys: Value) -> Value:
        """0 where query and key belong to one sequence, NEVER elsewhere; [rows, 1, queries, width], shared by heads and layers."""
        g = self.g
        with g.scope("bias"):
            same = g.op("Equal", g.op("Unsqueeze", queries, g.constant(np.array([1, 3]))), g.op("Unsqueeze", keys, g.constant(np.array([1, 2]))))
            return g.op("Where", same, g.constant(np.float32(0)), g.constant(NEVER))


@dataclass(slots=True)
class CumulativeLengths:
    """For CUDA: separate Q, K and V and no workspace copy, which on compute capability 9.0 reaches the variable-length flash kernel."""

    g: Graph
    heads: int
    hidden: int
    every_query: bool = True
    _chosen: Value = field(init=False)
    _offset: Value = field(init=False)
    _lengths: Value = field(init=False)

    def declare(self, chosen: Value) -> None:
        self._chosen = chosen
        self._offset = self.g.input("token_offset", "int32", ["all_sequences", "longest"])
        self._lengths = self.g.input("cumulative_lengths", "int32", ["all_sequences + 1"])

    def context(self, query: Value, key: Value, value: Value, bias: Value, *, last: bool) -> Value:
        context = self.g.contrib("PackedMultiHeadAttention", query, key, value, bias, self._offset, self._lengths, num_heads=self.heads)
        return self.g.op("Gather", context, self._chosen, axis=0) if last else context


LAYOUTS: dict[str, type[PackedRows] | type[CumulativeLengths]] = {PACKED_ROWS: PackedRows, CUMULATIVE_LENGTHS: CumulativeLengths}
