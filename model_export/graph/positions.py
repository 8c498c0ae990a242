"""Attention that knows positions: by biases of the distance, by turned queries and keys, in windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..architecture import Rotary
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
from .linear import normalized

BUCKETS, EXACT = 32, 8  # MPNet's: half of them are of keys before the query, and the nearest EXACT hold a distance each
FARTHEST = 128  # the distance from which on all keys share a bucket
QUERIES = 256  # in a block: with it, the scores of 8,192 tokens in 12 heads take 100 MB
BAND = 64  # slots of a band of queries, whose keys are in it, in the band before and in the band after
NARROW = 64  # channels: attention products of such heads add up 256 keys at once, so that a band may begin anywhere


@dataclass(slots=True)
class RelativeRows(PackedRows):
    """Packed rows with a bias by the distance, the same in all layers (MPNet, Song et al. 2020)."""

    def _bias(self, queries: QuerySlots, keys: Value, *, last: bool) -> Value:
        g = self.g
        columns = (g.op("Unsqueeze", one, g.int64(axis)) for one, axis in ((queries.segments, 2), (keys, 1)))
        masked = g.constant(np.int32(2 * self.sizes.positions - 1))
        distances = self._columns(distances_in(g, queries.tokens, selected=last))
        index = g.op("Where", g.op("Equal", *columns), distances, masked)
        return g.op("Transpose", g.op("Gather", self._table(), index, axis=1), perm=[1, 0, 2, 3])

    def _bias_of_one(self, states: Value) -> Value | None:
        positions = positions_of(self.g, states)
        return self.g.op("Gather", self._table(), self._columns(differences(self.g, positions, positions)), axis=1)

    def _columns(self, distances: Value) -> Value:
        """The columns of `_table` for `distances`."""
        return self.g.op("Add", distances, self.g.constant(np.int32(self.sizes.positions - 1)))

    def _table(self) -> Value:
        """[heads, distances + 1]: the bias of each distance from the smallest on, and the masked score."""
        positions = self.sizes.positions
        stored = self.parts.weight("relative", (BUCKETS, self.sizes.heads)).load()
        biases = stored[bucket_of(np.arange(1 - positions, positions))].T.astype(self.g.dtype)
        return self.g.constant(np.pad(biases, ((0, 0), (0, 1)), constant_values=MASKED_SCORES[self.g.dtype]))


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
        *windows, of_last = self.sizes.windows
        before = sorted({*windows})
        if not self.reads_shapes:
            places = [*((window, False) for window in before), (of_last, True)]
            self._in_windows = {(window, last): self._index_of(window, last=last) for window, last in places}
            return
        self._outputs = {last: self._output_indices(queries) for last, queries in slots.queries.items()}
        narrow = self.sizes.head_size <= NARROW
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
        window = self.sizes.windows[layer]
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

    def _values_of(self, projections: Projections, states: Value) -> Value:
        return self.linear.product(states, projections.value[0])

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
        bias, window = None, self.sizes.windows[layer]
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


class RotaryRows(DistanceRows):
    """Rows whose queries and keys are turned by their positions (Su et al. 2021)."""

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """`x` turned by `positions`; [tokens, 1, hidden]."""
        g, sizes = self.g, self.sizes
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
        if not self.sizes.rotary[layer].turns_values:
            return DistanceRows._values_of(self, projections, states)
        return self._prepare("value", self.linear.affine(states, *projections.value), layer, positions_in(self.g))


class AlibiRows(DistanceRows):
    """Rows with a bias that falls with the distance (ALiBi, Press et al. 2022) to both sides (JinaBERT v2)."""

    def _prepare(self, part: str, x: Value, layer: int, positions: Value) -> Value:  # noqa: ARG002
        """`x`, or its LayerNorm if the family has that norm."""
        if not self.parts.knows(f"{part}_norm"):
            return x
        return normalized(self.g, self.parts, f"{part}_norm", x, self.sizes.hidden, layer=layer)

    def _reads_distances(self, window: int) -> bool:  # noqa: ARG002
        return True

    def _bias_at(self, window: int, bias: Value, distances: Value) -> Value:  # noqa: ARG002
        g = self.g
        size = g.op("Max", distances, g.op("Mul", distances, g.constant(np.int32(-1))))  # not Abs: see `within`
        fall = g.constant(-slopes(self.sizes.heads)[:, None, None].astype(g.dtype))
        return g.op("Add", g.op("Mul", g.op("Cast", size, to=int(TYPES[g.dtype])), fall), bias)


def positions_in(g: GraphBuilder, *, selected: bool = False) -> Value:
    """The position of each flat token, or of each selected token; in int32."""
    positions = g.input("positions", "int32", ["tokens"])
    return g.op("Gather", positions, g.input("chosen", "int32", ["chosen"])) if selected else positions


def distances_in(g: GraphBuilder, tokens: Value, *, selected: bool) -> Value:
    """How far behind each query of `tokens` [rows, queries] a key is, [rows, queries, width]; across sequences too.

    `tokens` are the flat tokens of slots; in the last layer, those of slots among the `selected` tokens.
    """
    slot_tokens = g.input("slot_tokens", "int32", ["rows", "width"])
    of_queries = g.op("Gather", positions_in(g, selected=selected), tokens)
    return differences(g, of_queries, g.op("Gather", positions_in(g), slot_tokens))


def differences(g: GraphBuilder, queries: Value, keys: Value) -> Value:
    """keys - queries: from [..., queries] and [..., keys] to [..., queries, keys]."""
    rows = g.op("Unsqueeze", keys, g.int64(-2))
    return g.op("Sub", rows, g.op("Unsqueeze", queries, g.int64(-1)))


def positions_of(g: GraphBuilder, states: Value) -> Value:
    """0 to n - 1, [n] in int32, for `states` [n, hidden]: without a Shape, whose result is in the host's memory."""
    column = g.op("Gather", states, g.constant(np.int64(0)), axis=1)
    one = g.constant(np.int64(1))
    ones = g.op("Where", g.op("Equal", column, column), one, one)
    return g.op("Cast", g.op("Squeeze", g.op("NonZero", ones), g.int64(0)), to=int(TYPES["int32"]))


def within(g: GraphBuilder, window: int, distances: Value, bias: Value) -> Value:
    """`bias` if a key is at most `window` tokens away, else the masked score; `distances` are in int32."""
    largest = g.constant(np.int32(window**2))  # not Abs and LessOrEqual: more operators that need a kernel on CUDA
    near = g.op("Equal", g.op("Max", g.op("Mul", distances, distances), largest), largest)
    return g.op("Where", near, bias, g.constant(MASKED_SCORES[g.dtype]))


def bucket_of(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """The buckets of keys at `distances`: as many for near keys as for those whose distance grows exponentially."""
    size = np.abs(distances)
    growth = np.log2(np.maximum(size, 1) / EXACT) / np.log2(FARTHEST / EXACT)
    far = np.minimum(EXACT + np.trunc(growth * EXACT).astype(np.int64), 2 * EXACT - 1)
    return np.asarray(np.where(size < EXACT, size, far) + np.where(distances > 0, BUCKETS // 2, 0))


def angles(rotary: Rotary, positions: int, size: int) -> NDArray[np.float64]:
    """[positions, size / 2] in float64; computed in float32, in which the models were trained."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = np.power(rotary.theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers / np.float32(rotary.divisor)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float64)


def slopes(heads: int) -> NDArray[np.float64]:
    """[heads]: what a head's scores lose with each token of distance.

    Powers of 2 in equal steps down to 2^-8; if `heads` is no power of 2, the rest are from the steps of half that
    size.
    """
    even = 1 << (heads.bit_length() - 1)
    whole, half = np.arange(1, even + 1), np.arange(1, 2 * (heads - even), 2) / 2
    return np.asarray(2.0 ** (-8 / even * np.concatenate([whole, half])))
