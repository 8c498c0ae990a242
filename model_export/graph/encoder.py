"""The encoder (Devlin et al. 2018; Vaswani et al. 2017, post-norm), on flat tokens.

    ids, types, positions [tokens] -> embeddings -> layer x (L - 1) on all tokens -> last layer on the selected ones

Linear layers, norms and GELU do not know where a sequence ends; `attention.py` does.
"""

from dataclasses import dataclass

import numpy as np

from packbert.model_export.checkpoint import NamedWeights
from packbert.model_export.graph.attention import Attention, Projections
from packbert.model_export.graph.builder import CONTRIB, GraphBuilder, Value
from packbert.model_export.graph.channel_shift import Shift
from packbert.model_export.graph.disentangled import add_convolution, disentangle
from packbert.model_export.graph.linear import Linear, Norm


def read_projections(parts: NamedWeights, shift: Shift, layer: int) -> Projections:
    """The projections of a layer's attention, which reads activation 2 * `layer` of `shift`."""
    hidden = parts.architecture.hidden
    dense = (parts.dense(part, hidden, hidden, layer=layer) for part in ("query", "key", "value"))
    found = Projections(*(shift.compensate_dense(one, 2 * layer) for one in dense))
    return found if parts.architecture.relative is None else disentangle(parts, found, layer)


@dataclass(frozen=True, slots=True)
class Encoder:
    g: GraphBuilder
    parts: NamedWeights
    linear: Linear
    attention: Attention
    shift: Shift

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
        return [*states, self._layer(layers - 1, asked, states[-1])]

    def _embeddings(self) -> Value:
        """LayerNorm(word + position + segment), and the projection where the tables are narrower than the encoder."""
        g, parts, a = self.g, self.parts, self.parts.architecture
        if not parts.knows("position"):
            return self._embed_words()
        ids, types, positions = (
            self._indices(name) for name in ("ids", "types" if a.segments > 1 else "", "positions")
        )
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
            gamma, beta = self._norm_weights("embedding_norm", a.embedding, 0, index)
            inputs = (ids, types, word, position, segment, gamma, beta, None, positions)
            embedded, _ = g.ops("EmbedLayerNormalization", *inputs, outputs=2, domain=CONTRIB, epsilon=a.norm_epsilon)
            return self._project(g.op("Squeeze", embedded, g.constant(np.array([0], np.int64))))

    def _embed_words(self) -> Value:
        """LayerNorm(word), for attention that reads distances."""
        g, parts, a = self.g, self.parts, self.parts.architecture
        ids = g.input("ids", "int32", ["tokens"])
        with g.scope("embeddings"):
            words = g.op("Gather", g.weight("word", parts.weight("word", (a.vocabulary, a.embedding))), ids, axis=0)
            weights = self._norm_weights("embedding_norm", a.embedding, 0, 0)
            return g.op("LayerNormalization", words, *weights, axis=-1, epsilon=a.norm_epsilon)

    def _indices(self, name: str) -> Value | None:
        """The input `name` as [1, tokens]; None without a name."""
        if not name:
            return None
        return self.g.op("Unsqueeze", self.g.input(name, "int32", ["tokens"]), self.g.constant(np.array([0], np.int64)))

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
                context = self.attention.context(linear, projections, query_states, key_value_states, last=last)
                weight, bias = self.parts.dense("attention", a.hidden, a.hidden, layer=i)
                bias = shift.compensate_sum(projections.fold_value_bias(weight, bias), before)
                norm = self._norm("attention_norm", i, between)
                attended = linear.add_and_norm(g, context, weight, bias, query_states, norm)
            with g.scope("feed_forward"):
                dense_in = self.parts.dense("intermediate", a.intermediate, a.hidden, layer=i)
                weight, bias = shift.compensate_dense(dense_in, between)
                inner = linear.linear_activation(g, attended, weight, bias, a.activation)
                weight, bias = self.parts.dense("output", a.hidden, a.intermediate, layer=i)
                index = None if i == 0 and self._is_convolved else after
                bias, norm = shift.compensate_sum(bias, between), self._norm("output_norm", i, index)
                return linear.add_and_norm(g, inner, weight, bias, attended, norm)

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
        a = self.parts.architecture
        gamma, beta = self._norm_weights(part, a.hidden, layer, index)
        return Norm(gamma=gamma, beta=beta, epsilon=a.norm_epsilon)

    def _norm_weights(self, part: str, size: int, layer: int, index: int | None) -> tuple[Value, Value]:
        """Gamma and beta [size] of the norm that produces activation `index`; None is not shifted."""
        bias = self.parts.bias(part, size, layer=layer)
        with self.g.scope(part):
            weight = self.g.weight("weight", self.parts.weight(part, (size,), layer=layer))
            return weight, self.g.weight("bias", bias if index is None else self.shift.lower(bias, index))
