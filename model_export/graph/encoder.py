"""The encoder of the paper (Devlin et al. 2018; Vaswani et al. 2017, post-norm), on flat tokens.

    ids, types, positions [tokens] -> embeddings -> layer x (L - 1) on all tokens -> last layer on the chosen rows [chosen]

Linear layers, norms and GELU never see where a sequence ends; `attention.py` does.
"""

from dataclasses import dataclass

import numpy as np

from model_export.checkpoints.architecture import Architecture
from model_export.checkpoints.families import NamedWeights
from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.graph.attention import Attention, Projections
from model_export.graph.builder import CONTRIB, GraphBuilder, Value
from model_export.graph.channel_shift import Centres
from model_export.graph.linear import Linear, Norm


@dataclass(frozen=True, slots=True)
class Encoder:
    g: GraphBuilder
    architecture: Architecture
    parts: NamedWeights
    linear: Linear
    attention: Attention
    centres: Centres

    def build(self) -> Value:
        """The last layer's hidden states at the chosen rows, [chosen, hidden]."""
        selected = self.g.input("chosen", "int32", ["chosen"])
        self.attention.declare(selected)
        hidden = self._embeddings()
        for i in range(self.architecture.layers - 1):
            hidden = self._layer(i, hidden, hidden)
        return self._layer(self.architecture.layers - 1, self.g.op("Gather", hidden, selected, axis=0), hidden)

    def _embeddings(self) -> Value:
        """LayerNorm(word + position + segment), and the projection where the tables are narrower than the encoder."""
        g, a = self.g, self.architecture
        ids, types, positions = (
            self._indices(name) for name in ("ids", "types" if a.segments > 1 else "", "positions")
        )
        with g.scope("embeddings"):
            word = g.weight("word", self.parts.weight("word", (a.vocabulary, a.embedding)))
            table = self.parts.weight("position", (a.position_offset + a.positions, a.embedding))
            table = table.rows(a.position_offset, a.position_offset + a.positions)
            for part, rows in (("segment", a.segments if a.segments == 1 else 0), ("task_type", a.task_types)):
                if rows:  # the first row is added to every token: fold it into the positions
                    table = table.plus(self.parts.weight(part, (rows, a.embedding)).rows(0, 1))
            position = g.weight("position", table)
            segment = g.weight("segment", self.parts.weight("segment", (a.segments, a.embedding))) if types else None
            gamma, beta = self._norm_weights("embedding_norm", a.embedding, 0, place=None if self._projects else 0)
            inputs = (ids, types, word, position, segment, gamma, beta, None, positions)
            embedded, _ = g.ops("EmbedLayerNormalization", *inputs, outputs=2, domain=CONTRIB, epsilon=a.norm_epsilon)
            return self._projected(g.op("Squeeze", embedded, g.constant(np.array([0], np.int64))))

    def _indices(self, name: str) -> Value | None:
        """The input `name` as [1, tokens]; None without a name."""
        return (
            self.g.op("Unsqueeze", self.g.input(name, "int32", ["tokens"]), self.g.constant(np.array([0], np.int64)))
            if name
            else None
        )

    @property
    def _projects(self) -> bool:
        return self.architecture.embedding != self.architecture.hidden or self.parts.has("projection")

    def _projected(self, embedded: Value) -> Value:
        a, parts = self.architecture, self.parts
        if not self._projects:
            return embedded
        with self.g.scope("projection"):
            weight = self.g.weight("weight", parts.weight("projection", (a.hidden, a.embedding)))
            bias = self.centres.norm(parts.bias("projection", a.hidden), 0)
            return self.g.op("Gemm", embedded, weight, self.g.weight("bias", bias), transB=1)

    def _layer(self, i: int, query_states: Value, key_value_states: Value) -> Value:
        """Attention and feed-forward block of layer `i` for the rows `asking` [asking, hidden], which attend to `everyone`."""
        g, a, centres = self.g, self.architecture, self.centres
        before, between, after = 2 * i, 2 * i + 1, 2 * i + 2  # places of the values
        with g.scope(f"layers.{i}"):
            with g.scope("attention"):
                parts = (self._dense(part, a.hidden, a.hidden, i) for part in ("query", "key", "value"))
                projections = Projections(*(centres.dense(part, before) for part in parts))
                context = self.attention.context(
                    self.linear, projections, query_states, key_value_states, last=i == a.layers - 1
                )
                weight, bias = self._dense("attention", a.hidden, a.hidden, i)
                bias = centres.residual(projections.through(weight, bias), before)
                attended = self.linear.added(
                    g, context, weight, bias, query_states, self._norm("attention_norm", i, between)
                )
            with g.scope("feed_forward"):
                weight, bias = centres.dense(self._dense("intermediate", a.intermediate, a.hidden, i), between)
                inner = self.linear.activated(g, attended, weight, bias, a.activation)
                weight, bias = self._dense("output", a.hidden, a.intermediate, i)
                return self.linear.added(
                    g, inner, weight, centres.residual(bias, between), attended, self._norm("output_norm", i, after)
                )

    def _dense(self, part: str, out: int, width: int, layer: int) -> tuple[LazyWeight, LazyWeight]:
        return self.parts.weight(part, (out, width), layer=layer), self.parts.bias(part, out, layer=layer)

    def _norm(self, part: str, layer: int, place: int) -> Norm:
        gamma, beta = self._norm_weights(part, self.architecture.hidden, layer, place)
        return Norm(gamma=gamma, beta=beta, epsilon=self.architecture.norm_epsilon)

    def _norm_weights(self, part: str, size: int, layer: int, place: int | None) -> tuple[Value, Value]:
        bias = self.parts.bias(part, size, layer=layer)
        with self.g.scope(part):
            weight = self.g.weight("weight", self.parts.weight(part, (size,), layer=layer))
            return weight, self.g.weight("bias", bias if place is None else self.centres.norm(bias, place))
