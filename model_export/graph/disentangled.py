"""Disentangled attention (He et al. 2021, DeBERTa), in rows, and the convolution beside the first layer.

The score of tokens i and j is (q_i k_j + q_i K_b + k_j Q_b) / sqrt(terms * head size). K and Q are tables of projected
distances, which are computed at export, and b is the bucket of i - j. A model may lack either of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..architecture import CONVOLUTION_WIDTH, RelativePositions
from ..checkpoint import NamedWeights
from ..lazy_weight import Array, Dense, LazyWeight, zeros
from .attention import PackedRows, Projections, Slots, concat_rows
from .builder import TYPES, GraphBuilder, Value
from .channel_shift import NoShift
from .linear import Linear, Norm
from .positions import differences, distances_in, positions_of

CONTENT_TO_POSITION = "c2p"  # the term with K; the other term has Q


def bucket_rows(relative: RelativePositions, positions: int) -> NDArray[np.int32]:
    """The row of the tables for each distance from 1 - `positions` to `positions` - 1; ascending."""
    distances = np.arange(1 - positions, positions)
    far = np.abs(distances)
    if relative.buckets:  # the nearer half of them holds a distance each, the others are logarithmic
        near = relative.buckets // 2
        steps = np.log(np.maximum(far, near) / near) / np.log((relative.longest - 1) / near) * (near - 1)
        far = np.where(far <= near, far, np.ceil(steps).astype(np.int64) + near)
    rows = np.clip(np.sign(distances) * far + relative.span, 0, 2 * relative.span - 1)
    return np.asarray(rows, np.int32)


def disentangle(parts: NamedWeights, projections: Projections) -> Projections:
    """A layer's `projections` with its tables by term, [heads, 2 * span, head size], which have the scores' scale.

    The queries are divided by the root of the number of terms, so that the scores have the usual scale.
    """
    a, relative = parts.architecture, parts.architecture.relative
    share = (1 + len(relative.terms)) ** -0.5
    tables = {}
    for term in sorted(relative.terms):
        side, factor = ("key", 1.0) if term == CONTENT_TO_POSITION else ("query", share)
        part = side if relative.shares_projections else f"distance_{side}"
        dense = parts.dense(part, a.hidden, a.hidden, layer=projections.layer)
        tables[term] = _project_distances(parts, dense, factor * a.head_size**-0.5)
    weight, bias = (
        one.derived(f"times {share}", one.shape, lambda array: array * np.float32(share)) for one in projections.query
    )
    return replace(projections, query=(weight, bias), tables=tables)


def _project_distances(parts: NamedWeights, dense: Dense, scale: float) -> LazyWeight:
    """The distances through `dense`, times `scale`: [heads, 2 * span, head size]."""
    a, rows = parts.architecture, 2 * parts.architecture.relative.span
    stored = parts.weight("distances", (rows, a.hidden))
    norm = parts.norm("distances_norm", a.hidden) if a.relative.is_normed else None

    def load() -> Array:
        x = stored.load().astype(np.float64)
        if norm is not None:
            x -= x.mean(axis=-1, keepdims=True)
            x /= np.sqrt((x**2).mean(axis=-1, keepdims=True) + a.norm_epsilon)
            x = x * norm[0].load() + norm[1].load()
        projected = (x @ dense[0].load().T + dense[1].load()) * scale
        return np.ascontiguousarray(projected.reshape(rows, a.heads, a.head_size).transpose(1, 0, 2), np.float32)

    return LazyWeight((a.heads, rows, a.head_size), load)


@dataclass(slots=True)
class DisentangledRows(PackedRows):
    """Packed rows with the scores of the distances added to the bias in each layer.

    The tables are cut to the rows that the batch needs, 127 of 512 if its longest text has 64 tokens; but on CUDA they
    are whole.
    """

    _rows: Mapping[bool, Value] = field(init=False)  # by `last`, [rows, heads, queries, width]: each pair's table row
    _cut: tuple[Value, ...] = field(init=False, default=())  # inputs of Slice that cut the tables; none: they are whole

    def _place(self, slots: Slots) -> None:
        PackedRows._place(self, slots)
        with self.g.scope("distances"):
            self._cut = self._find_cut(slots.every.tokens) if self.reads_shapes else ()
            self._rows = {
                last: self._table_rows(distances_in(self.g, queries.tokens, selected=last))
                for last, queries in slots.queries.items()
            }

    def _keys_and_values(self, projections: Projections, states: Value) -> Value:
        """The keys have their bias, since it does not add the same to all scores of a query."""
        (key, bias), (value, _) = projections.key, projections.value
        return self.linear.affine(states, concat_rows(key, value), concat_rows(bias, zeros(bias.shape)))

    def _bias_in_layer(self, projections: Projections, query: Value, key: Value, *, last: bool) -> Value:
        return self._add_distances(self._index[last].bias, projections, query, key, self._rows[last])

    def probabilities(self, projections: Projections, states: Value) -> Value:
        g, size = self.g, self.sizes.head_size
        with g.scope("query"):
            query = self.linear.affine(states, *projections.query)
        with g.scope("key_value"):
            both = self._keys_and_values(projections, states)
        shape = g.int64(0, self.sizes.heads, size)  # 0: as many tokens
        key = g.op("Slice", both, g.int64(0), g.int64(self.sizes.hidden), g.int64(1))
        query, key = (g.op("Transpose", g.op("Reshape", x, shape), perm=[1, 0, 2]) for x in (query, key))
        scores = g.contrib("FusedMatMul", query, key, transB=1, alpha=size**-0.5)
        with g.scope("distances"):
            positions = positions_of(g, states)
            rows = self._table_rows(differences(g, positions, positions))
        return g.op("Softmax", self._add_distances(scores, projections, query, key, rows), axis=-1)

    def _add_distances(self, bias: Value, projections: Projections, query: Value, key: Value, rows: Value) -> Value:
        """`bias` plus the scores of queries with table K and of keys with table Q; [..., heads, queries, keys]."""
        g = self.g
        with g.scope("distances"):
            for term, table in projections.tables.items():
                stored = g.weight(term, table)
                stored = g.op("Slice", stored, *self._cut) if self._cut else stored
                left, right, axis = (query, stored, -1) if term == CONTENT_TO_POSITION else (stored, key, -2)
                products = g.contrib("FusedMatMul", left, right, transB=1)
                bias = g.op("Add", g.op("GatherElements", products, rows, axis=axis), bias)
            return bias

    def _find_cut(self, slot_tokens: Value) -> tuple[Value, ...]:
        """Starts, ends and axes of the rows for the distances within a row."""
        g, a = self.g, self.sizes
        rows, positions = bucket_rows(a.relative, a.positions).astype(np.int64), a.positions
        starts, ends = rows[:positions][::-1], rows[positions - 1 :] + 1
        width = g.op("Shape", slot_tokens, start=1)
        farthest = g.op("Sub", g.op("Min", width, g.constant(np.int64(len(starts)))), g.constant(np.int64(1)))
        found = (g.op("Gather", g.constant(one), farthest, axis=0) for one in (starts, ends))
        return *found, g.int64(1)

    def _table_rows(self, distances: Value) -> Value:
        """[..., heads, queries, keys] from `distances` [..., queries, keys]: each pair's table row.

        Pairs of different texts also have a row; separating_bias masks them.
        """
        g, a = self.g, self.sizes
        stored = bucket_rows(a.relative, a.positions)[::-1]  # of keys - queries
        at = g.op("Add", distances, g.constant(np.int32(a.positions - 1)))
        rows = g.op("Gather", g.constant(stored), at, axis=0)
        if self._cut:
            rows = g.op("Sub", rows, g.op("Cast", self._cut[0], to=int(TYPES["int32"])))
        every_head = g.int64(self.sizes.heads, 1, 1)
        return g.op("Expand", g.op("Unsqueeze", rows, g.int64(-3)), every_head)


def add_convolution(
    parts: NamedWeights, linear: Linear, shift: NoShift, embedded: Value, states: Value, norm: Norm
) -> Value:
    """LayerNorm(states + f(convolution of `embedded`)), both [tokens, hidden]; zeros stand around a sequence.

    `embedded` is activation 0 of `shift`, and `norm` produces activation 2.
    """
    g, a = linear.g, parts.architecture
    shape = (a.hidden, a.hidden, CONVOLUTION_WIDTH)
    kernel, bias = parts.weight("convolution", shape), parts.bias("convolution", a.hidden)
    flat_shape = (a.hidden, CONVOLUTION_WIDTH * a.hidden)
    total = kernel.derived("total", shape[:2], lambda array: array.sum(axis=2))
    flat = kernel.derived("flat", flat_shape, lambda array: array.transpose(0, 2, 1).reshape(flat_shape))
    with g.scope("convolution"):
        zero = g.weight("zero", shift.taken(0, a.hidden).derived("negative", (1, a.hidden), lambda array: -array[None]))
        together = g.op("Concat", *_neighbours(g, embedded, zero), axis=-1)
        shifted = shift.compensate_dense((total, bias), 0)[1]
        inner = linear.linear_activation(together, flat, shifted, a.relative.convolution)
        return norm.of(g, g.op("Add", states, inner))


def _neighbours(g: GraphBuilder, x: Value, zero: Value) -> tuple[Value, Value, Value]:
    """The states before, at and after each token; `zero` [1, hidden] if the sequence has none."""
    positions = g.input("positions", "int32", ["tokens"])
    last, end = g.int64(-1), g.int64(np.iinfo(np.int64).max)
    start, one = g.int64(0), g.int64(1)
    zero_position = g.constant(np.array([0], np.int32))
    is_first = g.op("Equal", positions, zero_position)
    after = g.op("Concat", g.op("Slice", positions, one, end), zero_position, axis=0)
    is_last = g.op("Equal", after, zero_position)
    before = g.op("Concat", zero, g.op("Slice", x, start, last, start), axis=0)
    behind = g.op("Concat", g.op("Slice", x, one, end, start), zero, axis=0)
    return (
        g.op("Where", g.op("Unsqueeze", is_first, one), zero, before),
        x,
        g.op("Where", g.op("Unsqueeze", is_last, one), zero, behind),
    )
