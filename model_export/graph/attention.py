"""Attention: in rows on a CPU, packed or in rows on CUDA."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..architecture import Architecture
from ..artifact.manifest import BF16_ROWS, CUMULATIVE_LENGTHS, PACKED_ROWS
from ..checkpoint import NamedWeights
from ..lazy_weight import Dense, LazyWeight
from .builder import OPSET, TYPES, GraphBuilder, Value
from .linear import Linear

# bias of a score between two sequences, by dtype: the probability becomes exactly 0
MASKED_SCORES: Mapping[str, np.generic] = {"float32": np.float32(-1e30), "float16": np.float16(-60000)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """A layer's query, key and value weights, [hidden, hidden], and biases, [hidden]."""

    query: Dense
    key: Dense
    value: Dense
    layer: int
    tables: Mapping[str, LazyWeight] = field(default_factory=dict)  # of disentangled attention, see `disentangle`


@dataclass(slots=True)
class Attention(ABC):
    """softmax(Q K^T / sqrt(head size)) V per head and sequence (Vaswani et al. 2017, equation 1).

    Keys have no bias, since it adds the same to all scores of a query. The values' bias is in the output layer's: a
    query's probabilities add up to 1, so it reaches the context unchanged.
    """

    layout: ClassVar[str]  # of the batch that it reads
    opset: ClassVar[int] = OPSET  # that its operators need
    linear: Linear
    parts: NamedWeights

    @property
    def g(self) -> GraphBuilder:
        return self.linear.g

    @property
    def sizes(self) -> Architecture:
        return self.parts.architecture

    @abstractmethod
    def declare(self) -> None:
        """Declares the inputs of the graph."""

    @abstractmethod
    def context(self, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool) -> Value:
        """The context [queries, hidden] of `query_states` [queries, hidden], which attend to `key_value_states`.

        `key_value_states` is [tokens, hidden]; so are `query_states`, but in the `last` layer: the selected tokens.
        """

    def probabilities(self, projections: Projections, states: Value) -> Value:
        """softmax(Q K^T / sqrt(head size)) of a sequence `states` [tokens, hidden]; [heads, tokens, tokens].

        The same products with the same weights as `context`, in a graph that declares no inputs of the layout.
        """
        query, key = self._query_and_key(projections, states)
        return self._probabilities_of(query, key, self._bias_of_one(states))

    @abstractmethod
    def _query_and_key(self, projections: Projections, states: Value) -> tuple[Value, Value]:
        """The queries and keys of `states`, both [tokens, hidden]."""

    def _bias_of_one(self, states: Value) -> Value | None:  # noqa: ARG002 - for a bias by position
        """What is added to the scores of a sequence `states` [tokens, hidden] that is alone."""
        return None

    def _probabilities_of(self, query: Value, key: Value, bias: Value | None = None) -> Value:
        """softmax(Q K^T / sqrt(head size) + bias) of a sequence: twice [tokens, hidden] -> [heads, tokens, tokens]."""
        g = self.g
        shape = g.int64(0, self.sizes.heads, self.sizes.head_size)  # 0: as many tokens
        by_head = (g.op("Transpose", g.op("Reshape", x, shape), perm=[1, 0, 2]) for x in (query, key))
        scores = g.contrib("FusedMatMul", *by_head, transB=1, alpha=self.sizes.head_size**-0.5)
        return g.op("Softmax", g.op("Add", scores, bias) if bias else scores, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySlots:
    """The slots of queries: of all tokens, or of the selected tokens in the last layer."""

    tokens: Value  # [rows, queries]: the token of each slot
    of_tokens: Value  # [tokens]: the slot of each token
    segments: Value  # [rows, queries]: the sequence of each slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The inputs of the packed rows."""

    every: QuerySlots  # [rows, width], also of the keys
    keys: Value  # [rows, width]: the sequence of each slot, without the tokens that no token attends to
    queries: Mapping[bool, QuerySlots]  # by whether the layer is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """The places of the query states in the packed attention rows, and the bias that separates sequences."""

    heads: Value  # [rows, heads, queries]: index of each query slot's head among the heads of the projections
    output: Value  # [queries, heads]: index of each query's head among the heads of the rows; on CUDA see PlainRows
    bias: Value  # [rows, 1 or heads, queries, width]


@dataclass(slots=True)
class PackedRows(Attention):
    """For the CPU: a row holds several short sequences, separated by a block-diagonal bias.

    Plain operators are faster than MultiHeadAttention here (3 times at 64 tokens per row): a Gather copies a head's
    numbers to the place that the products read, so nothing is transposed.
    """

    layout: ClassVar[str] = PACKED_ROWS
    reads_shapes: ClassVar[bool] = True  # whether layers may depend on a Shape, whose result is in the host's memory
    _keys: Value = field(init=False)
    _values: Value = field(init=False)
    _index: Mapping[bool, RowIndex] = field(init=False)  # by whether the layer is the last

    def declare(self) -> None:
        g = self.g
        every = QuerySlots(
            tokens=g.input("slot_tokens", "int32", ["rows", "width"]),
            of_tokens=g.input("token_slots", "int32", ["tokens"]),
            segments=g.input("segments", "int32", ["rows", "width"]),
        )
        keys = g.input("key_segments" if self.parts.masks_keys else "segments", "int32", ["rows", "width"])
        of_selected = QuerySlots(
            tokens=g.input("query_chosen", "int32", ["rows", "queries"]),
            segments=g.input("query_segments", "int32", ["rows", "queries"]),
            of_tokens=g.input("chosen_slots", "int32", ["chosen"]),
        )
        with g.scope("places"):
            self._place(Slots(every=every, keys=keys, queries={False: every, True: of_selected}))

    def _place(self, slots: Slots) -> None:
        """Prepares what all layers share."""
        self._keys = self._head_indices(slots.every.tokens, products=2, product=0)
        self._values = self._head_indices(slots.every.tokens, products=2, product=1)
        self._index = {
            last: RowIndex(
                heads=self._head_indices(queries.tokens),
                output=self._output_indices(queries),
                bias=self._bias(queries, slots.keys, last=last),
            )
            for last, queries in slots.queries.items()
        }

    def context(self, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool) -> Value:
        index = self._index[last]
        with self.g.scope("query"):
            query = self._gather_heads(self.linear.affine(query_states, *projections.query), index.heads)
        with self.g.scope("key_value"):
            both = self._keys_and_values(projections, key_value_states)
            key, value = self._gather_heads(both, self._keys), self._gather_heads(both, self._values)
        bias = self._bias_in_layer(projections, query, key, last=last)
        return self._join_heads(self._attend(query, key, value, bias), index.output)

    def _keys_and_values(self, projections: Projections, states: Value) -> Value:
        """The keys and values of `states` [tokens, hidden] by a joint product, [tokens, 2 * hidden]."""
        return self.linear.product(states, concat_rows(projections.key[0], projections.value[0]))

    def _bias_in_layer(self, projections: Projections, query: Value, key: Value, *, last: bool) -> Value:  # noqa: ARG002
        """What is added to the scores of `query` and `key`; [rows, 1 or heads, queries, width]."""
        return self._index[last].bias

    def _join_heads(self, context: Value, index: Value) -> Value:
        """[queries, hidden] from `context` [rows, heads, queries of a row, head size]; `index` is that of RowIndex."""
        flat = self.g.int64(-1, self.sizes.hidden)
        return self.g.op("Reshape", self._gather_heads(context, index), flat)

    def _attend(self, query: Value, key: Value, value: Value, bias: Value) -> Value:
        """The context of each query slot, [rows, heads, queries, head size]."""
        g = self.g
        scores = g.contrib("FusedMatMul", query, key, transB=1, alpha=self.sizes.head_size**-0.5)
        probabilities = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
        return g.op("MatMul", probabilities, value)

    def _query_and_key(self, projections: Projections, states: Value) -> tuple[Value, Value]:
        g = self.g
        with g.scope("query"):
            query = self.linear.affine(states, *projections.query)
        with g.scope("key_value"):
            both = self._keys_and_values(projections, states)
        return query, g.op("Slice", both, g.int64(0), g.int64(self.sizes.hidden), g.int64(1))

    def _bias(self, queries: QuerySlots, keys: Value, *, last: bool) -> Value:  # noqa: ARG002 - for a bias by position
        """What is added to the scores of `queries` in all layers; `keys` are those of Slots."""
        return separating_bias(self.g, queries.segments, keys)

    def _gather_heads(self, x: Value, index: Value) -> Value:
        """The heads of `x` at `index`, in the shape of `index`; [..., head size]."""
        heads = self.g.op("Reshape", x, self.g.int64(-1, self.sizes.head_size))
        return self.g.op("Gather", heads, index, axis=0)

    def _head_indices(self, tokens: Value, *, products: int = 1, product: int = 0) -> Value:
        """[rows, heads, slots] from flat tokens [rows, slots]: the index of a product's heads in joined products."""
        g, first = self.g, product * self.sizes.heads
        token = g.op("Unsqueeze", tokens, g.int64(1))
        start = g.op("Mul", token, g.constant(np.int32(products * self.sizes.heads)))
        return g.op("Add", start, g.constant(np.arange(first, first + self.sizes.heads, dtype=np.int32)[:, None]))

    def _output_indices(self, queries: QuerySlots) -> Value:
        """[tokens, heads]: a row stores its heads one after another, each with all its slots."""
        g, slots = self.g, queries.of_tokens
        width = g.op("Cast", g.op("Shape", queries.tokens, start=1), to=int(TYPES["int32"]))
        row = g.op("Div", slots, width)
        first = g.op("Add", slots, g.op("Mul", row, g.op("Mul", width, g.constant(np.int32(self.sizes.heads - 1)))))
        steps = g.op("Mul", g.constant(np.arange(self.sizes.heads, dtype=np.int32)), width)
        return g.op("Add", g.op("Unsqueeze", first, g.int64(1)), steps)


def separating_bias(g: GraphBuilder, queries: Value, keys: Value) -> Value:
    """0 within a sequence, MASKED_SCORES elsewhere; [rows, 1, queries, width], for all heads and layers.

    `queries` [rows, queries] and `keys` [rows, width] are the sequences that the slots belong to.
    """
    masked = MASKED_SCORES[g.dtype]
    with g.scope("bias"):
        query = g.op("Unsqueeze", queries, g.int64(1, 3))
        same = g.op("Equal", query, g.op("Unsqueeze", keys, g.int64(1, 2)))
        return g.op("Where", same, g.constant(np.zeros_like(masked)), g.constant(masked))


@dataclass(slots=True)
class FusedPackedRows(PackedRows):
    """Packed rows by a single operator, with the same bits: it adds the bias to the scores while they are in the cache.

    In fp32 a text of 512 tokens takes 4 % less time by it, in int8 14 % (benchmarks/results/tried.md).
    """

    opset: ClassVar[int] = 23

    def _attend(self, query: Value, key: Value, value: Value, bias: Value) -> Value:
        return self.g.op("Attention", query, key, value, bias)


@dataclass(slots=True)
class Bf16PackedRows(PackedRows):
    """Packed rows in which sequences begin at multiples of `rows.BF16_ALIGNMENT`."""

    layout: ClassVar[str] = BF16_ROWS


@dataclass(slots=True)
class PlainRows(PackedRows):
    """Packed rows for heads on CUDA that PackedMultiHeadAttention has no kernel for.

    A query's place is its slot: its head's index would need a Shape.
    """

    reads_shapes: ClassVar[bool] = False

    def _output_indices(self, queries: QuerySlots) -> Value:
        return queries.of_tokens

    def _join_heads(self, context: Value, index: Value) -> Value:
        together = self.g.op("Transpose", context, perm=[0, 2, 1, 3])
        flat = self.g.op("Reshape", together, self.g.int64(-1, self.sizes.hidden))
        return self.g.op("Gather", flat, index, axis=0)


def concat_rows(first: LazyWeight, second: LazyWeight) -> LazyWeight:
    """[m, in] and [n, in] -> [m + n, in]."""
    shape = (first.shape[0] + second.shape[0], *first.shape[1:])
    key = f"{first.cache_key} and {second.cache_key}" if first.cache_key else ""
    return LazyWeight(shape, lambda: np.concatenate([first.load(), second.load()]), key)


@dataclass(slots=True)
class CumulativeLengths(Attention):
    """Separate Q, K and V without bias, which the flash (fp16) and the memory-efficient (fp32) kernel expect.

    With a bias all three are copied first, to a workspace as large as the padded batch (BERT-base in fp16, a text of
    512 tokens beside 2,560 of 3: 7.4 GB in all instead of 0.5).
    """

    layout: ClassVar[str] = CUMULATIVE_LENGTHS
    _offset: Value = field(init=False)
    _lengths: Value = field(init=False)

    def declare(self) -> None:
        self._offset = self.g.input("token_offset", "int32", ["all_sequences", "longest"])
        self._lengths = self.g.input("cumulative_lengths", "int32", ["all_sequences + 1"])

    def context(self, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool) -> Value:  # noqa: ARG002
        query, key = self._query_and_key(projections, key_value_states)
        with self.g.scope("value"):
            value = self.linear.product(key_value_states, projections.value[0])
        inputs = (query, key, value, None, self._offset, self._lengths)
        context = self.g.contrib("PackedMultiHeadAttention", *inputs, num_heads=self.sizes.heads)
        return self.g.op("Gather", context, self.g.input("chosen", "int32", ["chosen"]), axis=0) if last else context

    def _query_and_key(self, projections: Projections, states: Value) -> tuple[Value, Value]:
        with self.g.scope("query"):
            query = self.linear.affine(states, *projections.query)
        with self.g.scope("key"):
            return query, self.linear.product(states, projections.key[0])
