"""Attention whose queries and keys are turned by their positions (Su et al. 2021), in windows where a layer has one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.graph.attention import (
    MASKED_SCORES,
    Attention,
    CumulativeLengths,
    FusedPackedRows,
    PackedRows,
    PlainRows,
    Projections,
    RowIndex,
    Slots,
    attention_probabilities,
    separating_bias,
)
from packbert.model_export.graph.builder import TYPES, GraphBuilder, Value
from packbert.model_export.graph.linear import Linear
from packbert.model_export.graph.positions import PositionedRows, differences, positions_of
from packbert.model_export.position_settings import Rotary

QUERIES = 256  # in a block: with it, the scores of 8,192 tokens in 12 heads take 100 MB
BAND = 64  # slots of a band of queries, whose keys are in it, in the one before and in the one after it
NARROW = 64  # channels: attention products of such heads add up 256 keys at once, so that a band may begin anywhere


@dataclass(slots=True)
class RotaryRows(PositionedRows):
    """As PackedRows, with the scores of all queries and keys of a row at once, whatever the window."""

    _turns: Mapping[bool, Value] = field(init=False)  # of all tokens, of the selected ones: [tokens, 1] in int64
    _index: dict[tuple[int, bool], RowIndex] = field(init=False)  # of a window, in the last layer or before

    def _place(self, slots: Slots) -> None:
        self._turns = {selected: turns(self.g, self._positions(selected=selected)) for selected in (False, True)}
        self._keys = self._head_indices(slots.tokens)
        self._index = {}
        windows = [one.window for one in self.parts.architecture.rotary]
        for window, last in [*((window, False) for window in sorted({*windows[:-1]})), (windows[-1], True)]:
            tokens, of_tokens, segments = (
                (slots.queries, slots.of_queries, slots.query_segments)
                if last
                else (slots.tokens, slots.of_tokens, slots.segments)
            )
            bias = separating_bias(self.g, segments, slots.keys)
            if window:
                near = self.g.op("Unsqueeze", self._distances(tokens), self.g.constant(np.array([1])))
                bias = within(self.g, window, near, bias)
            self._index[window, last] = RowIndex(
                heads=self._head_indices(tokens), output=self._output_indices(of_tokens, tokens), bias=bias
            )

    def context(
        self, linear: Linear, projections: Projections, query_states: Value, key_value_states: Value, *, last: bool
    ) -> Value:
        g, rotary = self.g, self.parts.architecture.rotary[projections.layer]
        with g.scope("query"):
            query = self._turn(linear.affine(g, query_states, *projections.query), rotary, self._turns[last])
        with g.scope("key"):
            key = self._turn(linear.affine(g, key_value_states, *projections.key), rotary, self._turns[False])
        with g.scope("value"):
            value = linear.product(g, key_value_states, projections.value[0])
        return self._context(query, key, value, rotary.window, last=last)

    def _context(self, query: Value, key: Value, value: Value, window: int, *, last: bool) -> Value:
        """The context [queries, hidden]; the others are [tokens or queries, 1, hidden]."""
        index = self._index[window, last]
        key, value = self._gather_heads(key, self._keys), self._gather_heads(value, self._keys)
        return self._join_heads(
            self._attend(self._gather_heads(query, index.heads), key, value, index.bias), index.output
        )

    def probabilities(self, linear: Linear, projections: Projections, states: Value) -> Value:
        g, rotary = self.g, self.parts.architecture.rotary[projections.layer]
        positions = g.op("Cast", positions_of(g, states), to=int(TYPES["int32"]))
        with g.scope("query"):
            query = self._turn(linear.affine(g, states, *projections.query), rotary, turns(g, positions))
        with g.scope("key"):
            key = self._turn(linear.affine(g, states, *projections.key), rotary, turns(g, positions))
        bias = None
        if rotary.window:
            none = g.constant(np.zeros((1, 1), g.dtype))
            bias = within(g, rotary.window, differences(g, positions, positions), none)
        return attention_probabilities(g, query, key, self.heads, self.hidden, bias)

    def _turn(self, x: Value, rotary: Rotary, positions: Value) -> Value:
        """The rows of `x` [tokens, hidden] turned by `positions` [tokens, 1]; [tokens, 1, hidden]."""
        g, sizes = self.g, self.parts.architecture
        angle = angles(rotary, sizes.positions, sizes.head_size)
        tables = (g.constant(table.astype(g.dtype)) for table in (np.cos(angle), np.sin(angle)))
        return g.contrib("RotaryEmbedding", g.op("Unsqueeze", x, g.constant(np.array([1]))), positions, *tables)


def angles(rotary: Rotary, positions: int, size: int) -> NDArray[np.float64]:
    """[positions, size / 2] in float64; computed in float32, in which the models were trained."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = np.power(rotary.theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers / np.float32(rotary.divisor)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float64)


def turns(g: GraphBuilder, positions: Value) -> Value:
    """`positions` [tokens] as RotaryEmbedding reads them: [tokens, 1] in int64."""
    return g.op("Unsqueeze", g.op("Cast", positions, to=int(TYPES["int64"])), g.constant(np.array([1])))


def within(g: GraphBuilder, window: int, distances: Value, bias: Value) -> Value:
    """`bias` where a key is at most `window` tokens away, else the masked score; `distances` are in int32."""
    largest = g.constant(np.int32(window**2))  # not Abs and LessOrEqual: more operators that need a kernel on CUDA
    near = g.op("Equal", g.op("Max", g.op("Mul", distances, distances), largest), largest)
    return g.op("Where", near, bias, g.constant(MASKED_SCORES[g.dtype]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bands:
    """The slots of all rows in one line, cut into bands of queries."""

    queries: RowIndex
    keys: Value  # [bands, heads, three times the width]


@dataclass(slots=True)
class BlockedRotaryRows(RotaryRows):
    """As RotaryRows, with memory that grows with the tokens and not with their square.

    A layer with a window of at most BAND computes the scores of each band of queries with three bands of keys. Another
    one, and the last one, computes those of QUERIES queries of each row at a time.
    """

    _slots: Slots = field(init=False)
    _bands: dict[int, _Bands] = field(init=False)

    def _place(self, slots: Slots) -> None:
        self._turns = {selected: turns(self.g, self._positions(selected=selected)) for selected in (False, True)}
        self._slots, self._keys = slots, self._head_indices(slots.tokens)
        self._all, self._selected = (
            RowIndex(heads=tokens, output=self._output_indices(of_tokens, tokens), bias=segments)
            for tokens, of_tokens, segments in (
                (slots.tokens, slots.of_tokens, slots.segments),
                (slots.queries, slots.of_queries, slots.query_segments),
            )
        )
        windows = {one.window for one in self.parts.architecture.rotary[:-1]}
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
        g, index = self.g, self._selected if last else self._all
        key, value = self._gather_heads(key, self._keys), self._gather_heads(value, self._keys)
        distances = self._distances(index.heads) if window else None
        step, zero = g.constant(np.array([QUERIES], np.int64)), g.constant(np.array([0], np.int64))
        most = g.constant(np.array([QUERIES - 1], np.int64))
        blocks = g.op("Div", g.op("Add", g.op("Shape", index.heads, start=1), most), step)

        def attend(number: Value, before: Sequence[Value]) -> Sequence[Value]:
            start = g.op("Mul", g.op("Unsqueeze", number, zero), step)
            ends = (start, g.op("Add", start, step), g.constant(np.array([1], np.int64)))
            tokens, segments = (g.op("Slice", x, *ends) for x in (index.heads, index.bias))
            bias = separating_bias(g, segments, self._slots.keys)
            if distances is not None:
                near = g.op("Unsqueeze", g.op("Slice", distances, *ends), g.constant(np.array([1])))
                bias = within(g, window, near, bias)
            found = self._attend(self._gather_heads(query, self._head_indices(tokens)), key, value, bias)
            return [g.op("Concat", before[0], found, axis=2)]

        none = g.op("Slice", key, zero, zero, g.constant(np.array([2], np.int64)))
        (context,) = g.loop(blocks, {none: g.dtype}, attend)
        return self._join_heads(context, index.output)

    def _cut(self, slots: Slots, window: int) -> _Bands:
        """Bands of the width of a row, at most of BAND slots."""
        g = self.g
        width = g.op("Min", g.op("Shape", slots.tokens, start=1), g.constant(np.array([BAND], np.int64)))
        count = g.op("Shape", g.op("Reshape", slots.tokens, g.constant(np.array([-1], np.int64))))
        rest = g.op("Mod", g.op("Neg", count), width)
        ends = g.op("Concat", width, g.op("Add", width, rest), axis=0)
        tokens, keys = self._cut_line(slots.tokens, width, ends, 0)
        segments, key_segments = self._cut_line(slots.segments, width, ends, -1)
        if slots.keys is not slots.segments:
            _, key_segments = self._cut_line(slots.keys, width, ends, -1)
        one, three, none = (g.constant(np.int32(number)) for number in (1, 3, 0))
        scalar = g.op("Cast", g.op("Squeeze", width), to=int(TYPES["int32"]))
        of_keys = g.op("Range", none, g.op("Mul", scalar, three), one)
        of_queries = g.op("Range", scalar, g.op("Add", scalar, scalar), one)
        bias = within(g, window, differences(g, of_queries, of_keys), separating_bias(g, segments, key_segments))
        queries = RowIndex(
            heads=self._head_indices(tokens), output=self._output_indices(slots.of_tokens, tokens), bias=bias
        )
        return _Bands(queries=queries, keys=self._head_indices(keys))

    def _cut_line(self, x: Value, width: Value, ends: Value, fill: int) -> tuple[Value, Value]:
        """Bands [bands, width] of `x` [rows, slots], and each with its neighbours, [bands, 3 * width]."""
        g = self.g
        line = g.op("Reshape", x, g.constant(np.array([-1], np.int64)))
        flat = g.op("Concat", g.constant(np.array([-1], np.int64)), width, axis=0)
        bands = g.op("Reshape", g.op("Pad", line, ends, g.constant(np.int32(fill))), flat)
        parts = [
            g.op("Slice", bands, *(g.constant(np.array([number], np.int64)) for number in (start, stop, 0)))
            for start, stop in ((0, -2), (1, -1), (2, np.iinfo(np.int64).max))
        ]
        return parts[1], g.op("Concat", *parts, axis=1)


class FusedRotaryRows(BlockedRotaryRows, FusedPackedRows):
    """As FusedPackedRows."""


class PlainRotaryRows(RotaryRows, PlainRows):
    """As PlainRows."""


ROTARY: Mapping[type[Attention], type[Attention]] = {  # in place of the attention of a BERT
    PackedRows: BlockedRotaryRows,
    FusedPackedRows: FusedRotaryRows,
    CumulativeLengths: PlainRotaryRows,
    PlainRows: PlainRotaryRows,
}
