"""The encoder (Devlin et al. 2018; Vaswani et al. 2017, post-norm), on flat tokens.

    ids, types, positions [tokens] -> embeddings -> layer x (L - 1) on all tokens -> last layer on the selected ones

Linear layers, norms and GELU do not know where a sequence ends; `attention.py` does.
"""

from dataclasses import dataclass

import numpy as np

from ..checkpoint import NamedWeights
from ..lazy_weight import Dense, LazyWeight
from .attention import Attention, Projections
from .builder import CONTRIB, GraphBuilder, Value
from .channel_shift import NoShift
from .disentangled import add_convolution, disentangle
from .linear import Linear, Norm


def read_projections(parts: NamedWeights, shift: NoShift, layer: int) -> Projections:
    """The projections of a layer's attention, which reads activation 2 * `layer` of `shift`."""
    hidden = parts.architecture.hidden
    dense = (parts.dense(part, hidden, hidden, layer=layer) for part in ("query", "key", "value"))
    query, key, value = (shift.compensate_dense(one, 2 * layer) for one in dense)
    found = Projections(query=query, key=key, value=value, layer=layer)
    return found if parts.architecture.relative is None else disentangle(parts, found)


def attention_input(g: GraphBuilder, parts: NamedWeights, shift: NoShift, layer: int, states: Value) -> Value:
    """What the projections of `layer` read of the `states` before it: their norm in a pre-norm layer but the first."""
    a = parts.architecture
    if a.is_prenorm and layer > 0:
        states = read_norm(g, parts, shift, "attention_norm", a.hidden, layer, 2 * layer).of(g, states)
    return shift.balanced(g, states, 2 * layer, a.hidden)


def read_norm(
    g: GraphBuilder, parts: NamedWeights, shift: NoShift, part: str, size: int, layer: int, index: int | None
) -> Norm:
    """The norm of `size` channels that produces activation `index`; None is not shifted."""
    weight, bias = parts.norm(part, size, layer=layer)
    with g.scope(part):
        gamma = g.weight("weight", weight)
        beta = g.weight("bias", bias if index is None else shift.lower(bias, index))
    return Norm(gamma=gamma, beta=beta, epsilon=parts.architecture.norm_epsilon)


@dataclass(frozen=True, slots=True)
class Encoder:
    g: GraphBuilder
    parts: NamedWeights
    linear: Linear
    attention: Attention
    shift: NoShift

    def build(self) -> list[Value]:
        """The hidden states after the embeddings and each layer, [tokens, hidden].

        The last ones are only of the selected tokens, [selected, hidden].
        """
        selected, layers = self.g.input("chosen", "int32", ["chosen"]), self.parts.architecture.layers
        self.attention.declare(selected)
        states = [self._embeddings()]
        for i in range(layers - 1):
            states.append(self._layer(i, states[i], states[i]))
            if i == 0 and self._is_convolved:
                states[-1] = self._convolve(*states)
        asked = self.g.op("Gather", states[-1], selected, axis=0)
        last = self._layer(layers - 1, asked, states[-1])
        return [
            *states,
            self._norm("final_norm", 0, 2 * layers).of(self.g, last) if self.parts.architecture.is_prenorm else last,
        ]

    def _embeddings(self) -> Value:
        """LayerNorm(word + position + segment), and the projection where the tables are narrower than the encoder."""
        g, parts, a = self.g, self.parts, self.parts.architecture
        if not parts.knows("position"):
            return self._embeddings_without_positions()
        ids = self._indices("ids")
        types = self._indices("types") if a.segments > 1 else None
        positions = self._indices("positions")
        with g.scope("embeddings"):
            word = g.weight("word", parts.weight("word", (a.vocabulary, a.embedding)))
            table = parts.weight("position", (a.position_offset + a.positions, a.embedding))
            table = table.rows(a.position_offset, a.position_offset + a.positions)
            for part, rows in (("segment", a.segments if a.segments == 1 else 0), ("task_type", a.task_types)):
                if rows:  # the first row is added to every token: fold it into the positions
                    table = table.plus(parts.weight(part, (rows, a.embedding)).rows(0, 1))
            position = g.weight("position", table)
            segment = g.weight("segment", parts.weight("segment", (a.segments, a.embedding))) if types else None
            index = None if parts.has_projection else 0
            norm = read_norm(g, parts, self.shift, "embedding_norm", a.embedding, 0, index)
            inputs = (ids, types, word, position, segment, norm.gamma, norm.beta, None, positions)
            embedded, _ = g.ops("EmbedLayerNormalization", *inputs, outputs=2, domain=CONTRIB, epsilon=a.norm_epsilon)
            return self._project(g.op("Squeeze", embedded, g.int64(0)))

    def _embeddings_without_positions(self) -> Value:
        """LayerNorm(word + segment)."""
        g, parts, a = self.g, self.parts, self.parts.architecture
        with g.scope("embeddings"):
            word = g.weight("word", parts.weight("word", (a.vocabulary, a.embedding)))
            total = g.op("Gather", word, g.input("ids", "int32", ["tokens"]))
            if a.segments:
                table = g.weight("segment", parts.weight("segment", (a.segments, a.embedding)))
                types = g.input("types", "int32", ["tokens"]) if a.segments > 1 else g.constant(np.array([0], np.int32))
                total = g.op("Add", total, g.op("Gather", table, types))
            index = None if parts.has_projection else 0
            norm = read_norm(g, parts, self.shift, "embedding_norm", a.embedding, 0, index)
            return self._project(norm.of(g, total))

    def _indices(self, name: str) -> Value:
        """The input `name` as [1, tokens]."""
        return self.g.op("Unsqueeze", self.g.input(name, "int32", ["tokens"]), self.g.int64(0))

    def _project(self, embedded: Value) -> Value:
        if not self.parts.has_projection:
            return embedded
        a = self.parts.architecture
        with self.g.scope("projection"):
            weight, bias = self.parts.dense("projection", a.hidden, a.embedding)
            stored = self.g.weight("weight", weight)
            return self.g.op("Gemm", embedded, stored, self.g.weight("bias", self.shift.lower(bias, 0)), transB=1)

    def _layer(self, i: int, query_states: Value, key_value_states: Value) -> Value:
        """Layer `i` of the tokens `query_states` [queries, hidden], which attend to `key_value_states`; same shape."""
        g, a, linear, shift = self.g, self.parts.architecture, self.linear, self.shift
        before, between, after = 2 * i, 2 * i + 1, 2 * i + 2  # activation indices
        with g.scope(f"layers.{i}"):
            with g.scope("attention"):
                projections = read_projections(self.parts, shift, i)
                last = i == a.layers - 1
                weight, bias = self.parts.dense("attention", a.hidden, a.hidden, layer=i)
                if not (a.rotary and a.rotary[i].turns_values):
                    bias = projections.fold_value_bias(weight, bias)
                read = attention_input(g, self.parts, shift, i, key_value_states)
                asked = attention_input(g, self.parts, shift, i, query_states) if last else read
                context = self.attention.context(linear, projections, asked, read, last=last)
                if a.is_prenorm:
                    attended = g.op("Add", linear.affine(g, context, weight, bias), query_states)
                else:
                    bias = shift.compensate_sum(bias, before)
                    attended = self._add_and_norm(i, context, weight, bias, query_states)
            with g.scope("feed_forward"):
                reader, bias = self.parts.dense("output", a.hidden, a.intermediate, layer=i)
                weight = shift.split_inputs(reader)
                if a.is_prenorm:
                    inner = self._inner(i, self._norm("output_norm", i, between).of(g, attended), between, reader)
                    return g.op("Add", linear.affine(g, inner, weight, bias), attended)
                inner = self._inner(i, attended, between, reader)
                index = None if i == 0 and self._is_convolved else after
                bias, norm = shift.compensate_sum(bias, between), self._norm("output_norm", i, index)
                return linear.add_and_norm(g, inner, weight, bias, attended, norm)

    def _add_and_norm(self, i: int, context: Value, weight: LazyWeight, bias: LazyWeight, states: Value) -> Value:
        """x = LayerNorm(states + context W + b), or LayerNorm(states + x) with that norm (JinaBERT for code)."""
        g, parts = self.g, self.parts
        if not parts.knows("second_norm"):
            return self.linear.add_and_norm(
                g, context, weight, bias, states, self._norm("attention_norm", i, 2 * i + 1)
            )
        first, added = parts.norm("attention_norm", parts.architecture.hidden, layer=i)
        with g.scope("attention_norm"):
            beta = g.weight("bias", self.shift.compensate_sum(added, 2 * i))
            norm = Norm(gamma=g.weight("weight", first), beta=beta, epsilon=parts.architecture.norm_epsilon)
        attended = self.linear.add_and_norm(g, context, weight, bias, states, norm)
        return self._norm("second_norm", i, 2 * i + 1).of(g, g.op("Add", attended, states))

    def _inner(self, layer: int, x: Value, index: int, reader: LazyWeight) -> Value:
        """f(x W + b), times x V + c where the feed-forward is gated; `x` is activation `index`.

        `reader` [hidden, inner] is the weight that reads the result.
        """
        g, a, shift = self.g, self.parts.architecture, self.shift
        x = shift.balanced(g, x, index, a.hidden)

        def dense(part: str) -> Dense:
            read = self.parts.dense(part, a.intermediate, a.hidden, layer=layer)
            return shift.split_results(shift.compensate_dense(read, index), reader)

        inner = self.linear.linear_activation(g, x, *dense("intermediate"), a.activation)
        if not a.is_gated:
            return inner
        with g.scope("gate"):
            return g.op("Mul", inner, self.linear.affine(g, x, *dense("gate")))

    @property
    def _is_convolved(self) -> bool:
        """Whether a convolution of the embeddings is added to the first layer."""
        relative = self.parts.architecture.relative
        return relative is not None and bool(relative.convolution)

    def _convolve(self, embedded: Value, states: Value) -> Value:
        with self.g.scope("layers.0"):
            norm = self._norm("convolution_norm", 0, 2)
            return add_convolution(self.g, self.parts, self.linear, self.shift, embedded, states, norm)

    def _norm(self, part: str, layer: int, index: int | None) -> Norm:
        return read_norm(self.g, self.parts, self.shift, part, self.parts.architecture.hidden, layer, index)
