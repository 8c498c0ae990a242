"""Attention that reads distances, in the windows of the layers that have them, with bounded memory for long texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .attention import (
    MASKED_SCORES,
    PackedRows,
    Projections,
    QuerySlots,
    RowIndex,
    Slots,
    separating_bias,
)
from .builder import TYPES, GraphBuilder, Value
from .positions import differences, distances_in, positions_in, positions_of

QUERIES = 256  # in a block: with it, the scores of 8,192 tokens in 12 heads take 100 MB
BAND = 64  # slots of a band of queries, whose keys are in it, in the band before and in the band after
NARROW = 64  # channels: attention products of such heads add up 256 keys at once, so that a band may begin anywhere


@dataclass(slots=True)
class DistanceRows(PackedRows):
    """Packed rows for a subclass that reads distances.

    Memory grows with the tokens and not with their square. A layer with a window of at most BAND computes the
    scores of each band of queries with three bands of keys. Another layer, and the last layer, computes those of
    QUERIES queries of each row at a time. On CUDA each layer computes those of all queries and keys of a row at once.
    """

    _slots: Slots = field(init=False)
    _outputs: Mapping[bool, Value] = field(init=False)  # the `output` of a RowIndex, by whether the layer is the last
    # of a window: the queries of each band, and its keys [bands, heads, three times the width]
    _bands: Mapping[int, tuple[RowIndex, Value]] = field(init=False)
    _in_windows: Mapping[tuple[int, bool], RowIndex] = field(init=False)  # of a window, in the last layer or before

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """The queries or keys `x` [tokens, hidden] of the tokens at `positions` [tokens], as the products read them."""
        return x

    def _reads_distances(self, window: int) -> bool:
        return window > 0

    def _bias_at(self, window: int, bias: Value, distances: Value) -> Value:
        """`bias` with what the `distances` in int32 add to it."""
        return within(self.g, window, distances, bias)

    def _place(self, slots: Slots) -> None:
        self._slots, self._keys, self._bands = slots, self._head_indices(slots.every.tokens), {}
        *windows, of_last = self.parts.architecture.windows
        before = sorted({*windows})
        if not self.reads_shapes:
            places = [*((window, False) for window in before), (of_last, True)]
            self._in_windows = {(window, last): self._index_of(window, last=last) for window, last in places}
            return
        self._outputs = {last: self._output_indices(queries) for last, queries in slots.queries.items()}
        narrow = self.parts.architecture.head_size <= NARROW
        self._bands = {window: self._cut(slots, window) for window in before if narrow and 0 < window <= BAND}

    def _index_of(self, window: int, *, last: bool) -> RowIndex:
        queries = self._slots.queries[last]
        bias = self._bias_of(window, queries.tokens, queries.segments, last=last)
        return RowIndex(heads=self._head_indices(queries.tokens), output=self._output_indices(queries), bias=bias)

    def _bias_of(self, window: int, tokens: Value, segments: Value, *, last: bool) -> Value:
        """The bias of the queries `tokens` and `segments` [rows, queries]; [rows, 1 or heads, queries, width]."""
        bias = separating_bias(self.g, segments, self._slots.keys)
        if not self._reads_distances(window):
            return bias
        distances = distances_in(self.g, tokens, selected=last)
        return self._bias_at(window, bias, self.g.op("Unsqueeze", distances, self.g.int64(1)))

    def context(self, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool) -> Value:
        g, layer = self.g, projections.layer
        with g.scope("query"):
            query = self.linear.affine(query_states, *projections.query)
            query = self._prepare("query", query, layer, positions_in(g, selected=last))
        with g.scope("key"):
            key = self.linear.affine(key_value_states, *projections.key)
            key = self._prepare("key", key, layer, positions_in(g))
        with g.scope("value"):
            value = self._values_of(projections, key_value_states)
        return self._context(query, key, value, self.parts.architecture.windows[layer], last=last)

    def _values_of(self, projections: Projections, states: Value) -> Value:
        return self.linear.product(states, projections.value[0])

    def _context(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        """The context [queries, hidden]; `query`, `key` and `value` are [tokens or queries, 1, hidden]."""
        if not last and window in self._bands:
            index, keys = self._bands[window]
            query = self._gather_heads(query, index.heads)
            key, value = self._gather_heads(key, keys), self._gather_heads(value, keys)
            return self._join_heads(self._attend(query, key, value, index.bias), index.output)
        key, value = self._gather_heads(key, self._keys), self._gather_heads(value, self._keys)
        if self.reads_shapes:
            return self._join_heads(self._in_blocks(query, key, value, window, last=last), self._outputs[last])
        index = self._in_windows[window, last]
        query = self._gather_heads(query, index.heads)
        return self._join_heads(self._attend(query, key, value, index.bias), index.output)

    def _in_blocks(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        """The context of each query slot, [rows, heads, queries, head size], of QUERIES slots in a pass of a loop."""
        g, queries = self.g, self._slots.queries[last]
        step, zero = g.int64(QUERIES), g.int64(0)
        blocks = g.op("Div", g.op("Add", g.op("Shape", queries.tokens, start=1), g.int64(QUERIES - 1)), step)

        def attend(number: Value, before: Sequence[Value]) -> Sequence[Value]:
            start = g.op("Mul", g.op("Unsqueeze", number, zero), step)
            ends = (start, g.op("Add", start, step), g.int64(1))
            tokens, segments = (g.op("Slice", x, *ends) for x in (queries.tokens, queries.segments))
            bias = self._bias_of(window, tokens, segments, last=last)
            found = self._attend(self._gather_heads(query, self._head_indices(tokens)), key, value, bias)
            return [g.op("Concat", before[0], found, axis=2)]

        none = g.op("Slice", key, zero, zero, g.int64(2))
        (context,) = g.loop(blocks, {none: g.dtype}, attend)
        return context

    def probabilities(self, projections: Projections, states: Value) -> Value:
        g, layer = self.g, projections.layer
        positions = positions_of(g, states)
        with g.scope("query"):
            query = self._prepare("query", self.linear.affine(states, *projections.query), layer, positions)
        with g.scope("key"):
            key = self._prepare("key", self.linear.affine(states, *projections.key), layer, positions)
        bias, window = None, self.parts.architecture.windows[layer]
        if self._reads_distances(window):
            bias = self._bias_at(window, g.constant(np.zeros((1, 1), g.dtype)), differences(g, positions, positions))
        return self._probabilities_of(query, key, bias)

    def _cut(self, slots: Slots, window: int) -> tuple[RowIndex, Value]:
        """The slots of all rows in a line, cut into bands of the width of a row, at most of BAND slots."""
        g, every = self.g, slots.every
        width = g.op("Min", g.op("Shape", every.tokens, start=1), g.int64(BAND))
        count = g.op("Shape", g.op("Reshape", every.tokens, g.int64(-1)))
        rest = g.op("Mod", g.op("Neg", count), width)
        ends = g.op("Concat", width, g.op("Add", width, rest), axis=0)
        tokens, keys = self._cut_line(every.tokens, width, ends, 0)
        segments, key_segments = self._cut_line(every.segments, width, ends, -1)
        if slots.keys is not every.segments:
            _, key_segments = self._cut_line(slots.keys, width, ends, -1)
        one, three, none = (g.constant(np.int32(number)) for number in (1, 3, 0))
        scalar = g.op("Cast", g.op("Squeeze", width), to=int(TYPES["int32"]))
        of_keys = g.op("Range", none, g.op("Mul", scalar, three), one)
        of_queries = g.op("Range", scalar, g.op("Add", scalar, scalar), one)
        bias = within(g, window, differences(g, of_queries, of_keys), separating_bias(g, segments, key_segments))
        queries = QuerySlots(tokens=tokens, of_tokens=every.of_tokens, segments=segments)
        index = RowIndex(heads=self._head_indices(tokens), output=self._output_indices(queries), bias=bias)
        return index, self._head_indices(keys)

    def _cut_line(self, x: Value, width: Value, ends: Value, fill: int) -> tuple[Value, Value]:
        """Bands [bands, width] of `x` [rows, slots], and each with its neighbours, [bands, 3 * width]."""
        g = self.g
        line = g.op("Reshape", x, g.int64(-1))
        flat = g.op("Concat", g.int64(-1), width, axis=0)
        bands = g.op("Reshape", g.op("Pad", line, ends, g.constant(np.int32(fill))), flat)
        parts = [
            g.op("Slice", bands, g.int64(start), g.int64(stop), g.int64(0))
            for start, stop in ((0, -2), (1, -1), (2, np.iinfo(np.int64).max))
        ]
        return parts[1], g.op("Concat", *parts, axis=1)


def within(g: GraphBuilder, window: int, distances: Value, bias: Value) -> Value:
    """`bias` if a key is at most `window` tokens away, else the masked score; `distances` are in int32."""
    largest = g.constant(np.int32(window**2))  # not Abs and LessOrEqual: more operators that need a kernel on CUDA
    near = g.op("Equal", g.op("Max", g.op("Mul", distances, distances), largest), largest)
    return g.op("Where", near, bias, g.constant(MASKED_SCORES[g.dtype]))
