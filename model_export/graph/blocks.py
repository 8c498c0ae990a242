"""Attention that reads distances, in the windows of the layers that have them, with bounded memory for long texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .attention import (
    MASKED_SCORES,
    Projections,
    QuerySlots,
    RowIndex,
    Slots,
    separating_bias,
)
from .builder import TYPES, GraphBuilder, Value
from .positions import PositionedRows, differences, positions_of

QUERIES = 256  # in a block: with it, the scores of 8,192 tokens in 12 heads take 100 MB
BAND = 64  # slots of a band of queries, whose keys are in it, in the band before and in the band after
NARROW = 64  # channels: attention products of such heads add up 256 keys at once, so that a band may begin anywhere


@dataclass(slots=True)
class DistanceRows(PositionedRows):
    """Packed rows for a subclass that reads distances; the scores of all queries and keys of a row at once."""

    _in_windows: dict[tuple[int, bool], RowIndex] = field(init=False)  # of a window, in the last layer or before

    @property
    def _windows(self) -> Sequence[int]:
        """Of each layer: tokens to each side that a query attends to; 0: all."""
        return (0,) * self.parts.architecture.layers

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """The queries or keys `x` [tokens, hidden] of the tokens at `positions` [tokens], as the products read them."""
        return x

    def _reads_distances(self, window: int) -> bool:
        return window > 0

    def _bias_at(self, window: int, bias: Value, distances: Value) -> Value:
        """`bias` with what the `distances` in int32 add to it."""
        return within(self.g, window, distances, bias)

    def _place(self, slots: Slots) -> None:
        self._keys = self._head_indices(slots.every.tokens)
        self._in_windows = {}
        windows = self._windows
        for window, last in [*((window, False) for window in sorted({*windows[:-1]})), (windows[-1], True)]:
            queries = slots.queries[last]
            bias = separating_bias(self.g, queries.segments, slots.keys)
            if self._reads_distances(window):
                bias = self._bias_at(window, bias, self._distances_of_heads(queries.tokens, selected=last))
            self._in_windows[window, last] = RowIndex(
                heads=self._head_indices(queries.tokens), output=self._output_indices(queries), bias=bias
            )

    def _distances_of_heads(self, tokens: Value, *, selected: bool) -> Value:
        """`_distances` for all heads: [rows, 1, queries, width]."""
        return self.g.op("Unsqueeze", self._distances(tokens, selected=selected), self.g.int64(1))

    def context(self, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool) -> Value:
        g, layer = self.g, projections.layer
        with g.scope("query"):
            query = self.linear.affine(query_states, *projections.query)
            query = self._prepare("query", query, layer, self._positions(selected=last))
        with g.scope("key"):
            key = self.linear.affine(key_value_states, *projections.key)
            key = self._prepare("key", key, layer, self._positions())
        with g.scope("value"):
            value = self._values_of(projections, key_value_states)
        return self._context(query, key, value, self._windows[layer], last=last)

    def _values_of(self, projections: Projections, states: Value) -> Value:
        return self.linear.product(states, projections.value[0])

    def _context(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        """The context [queries, hidden]; `query`, `key` and `value` are [tokens or queries, 1, hidden]."""
        index = self._in_windows[window, last]
        key, value = self._gather_heads(key, self._keys), self._gather_heads(value, self._keys)
        return self._join_heads(
            self._attend(self._gather_heads(query, index.heads), key, value, index.bias), index.output
        )

    def probabilities(self, projections: Projections, states: Value) -> Value:
        g, layer = self.g, projections.layer
        positions = positions_of(g, states)
        with g.scope("query"):
            query = self._prepare("query", self.linear.affine(states, *projections.query), layer, positions)
        with g.scope("key"):
            key = self._prepare("key", self.linear.affine(states, *projections.key), layer, positions)
        bias, window = None, self._windows[layer]
        if self._reads_distances(window):
            bias = self._bias_at(window, g.constant(np.zeros((1, 1), g.dtype)), differences(g, positions, positions))
        return self._probabilities_of(query, key, bias)


def within(g: GraphBuilder, window: int, distances: Value, bias: Value) -> Value:
    """`bias` if a key is at most `window` tokens away, else the masked score; `distances` are in int32."""
    largest = g.constant(np.int32(window**2))  # not Abs and LessOrEqual: more operators that need a kernel on CUDA
    near = g.op("Equal", g.op("Max", g.op("Mul", distances, distances), largest), largest)
    return g.op("Where", near, bias, g.constant(MASKED_SCORES[g.dtype]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bands:
    """The slots of all rows in a line, cut into bands of queries."""

    queries: RowIndex
    keys: Value  # [bands, heads, three times the width]


@dataclass(slots=True)
class BlockedRows(DistanceRows):
    """Distance rows with memory that grows with the tokens and not with their square.

    A layer with a window of at most BAND computes the scores of each band of queries with three bands of keys. Another
    layer, and the last layer, computes those of QUERIES queries of each row at a time.
    """

    _slots: Slots = field(init=False)
    _outputs: Mapping[bool, Value] = field(init=False)  # the `output` of a RowIndex, by whether the layer is the last
    _bands: dict[int, _Bands] = field(init=False)

    def _place(self, slots: Slots) -> None:
        self._slots, self._keys = slots, self._head_indices(slots.every.tokens)
        self._outputs = {last: self._output_indices(queries) for last, queries in slots.queries.items()}
        windows = {*self._windows[:-1]}
        narrow = self.parts.architecture.head_size <= NARROW
        self._bands = {window: self._cut(slots, window) for window in sorted(windows) if narrow and 0 < window <= BAND}

    def _context(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        if last or window not in self._bands:
            return self._in_blocks(query, key, value, window, last=last)
        bands = self._bands[window]
        query = self._gather_heads(query, bands.queries.heads)
        key, value = self._gather_heads(key, bands.keys), self._gather_heads(value, bands.keys)
        return self._join_heads(self._attend(query, key, value, bands.queries.bias), bands.queries.output)

    def _in_blocks(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        g, queries = self.g, self._slots.queries[last]
        key, value = self._gather_heads(key, self._keys), self._gather_heads(value, self._keys)
        step, zero = g.int64(QUERIES), g.int64(0)
        blocks = g.op("Div", g.op("Add", g.op("Shape", queries.tokens, start=1), g.int64(QUERIES - 1)), step)

        def attend(number: Value, before: Sequence[Value]) -> Sequence[Value]:
            start = g.op("Mul", g.op("Unsqueeze", number, zero), step)
            ends = (start, g.op("Add", start, step), g.int64(1))
            tokens, segments = (g.op("Slice", x, *ends) for x in (queries.tokens, queries.segments))
            bias = separating_bias(g, segments, self._slots.keys)
            if self._reads_distances(window):
                bias = self._bias_at(window, bias, self._distances_of_heads(tokens, selected=last))
            found = self._attend(self._gather_heads(query, self._head_indices(tokens)), key, value, bias)
            return [g.op("Concat", before[0], found, axis=2)]

        none = g.op("Slice", key, zero, zero, g.int64(2))
        (context,) = g.loop(blocks, {none: g.dtype}, attend)
        return self._join_heads(context, self._outputs[last])

    def _cut(self, slots: Slots, window: int) -> _Bands:
        """Bands of the width of a row, at most of BAND slots."""
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
        return _Bands(queries=index, keys=self._head_indices(keys))

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
