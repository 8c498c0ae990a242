"""The encoder of the paper (Devlin et al. 2018; Vaswani et al. 2017, post-norm), on flat tokens.

    ids, types, positions [tokens] -> embeddings -> layer x (L - 1) on all tokens -> last layer on the chosen rows [chosen]

Linear layers, norms and GELU never see where a sequence ends. Attention does, on packed rows:

    flat [tokens, hidden] --slot_tokens--> rows [rows, width, hidden] --MultiHeadAttention + bias--> --token_slots--> flat
"""

from dataclasses import dataclass

import numpy as np

from model_export.architecture import Architecture
from model_export.checkpoint import Weight
from model_export.families import Parts
from model_export.graph import CONTRIB, Graph, Value
from model_export.linear import Linear

NEVER = np.float32(-1e30)  # added to the score of a token of another sequence: its probability is exactly 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the rows that ask (queries) sit in the packed attention rows, and the bias that keeps neighbours apart."""

    gather: Value  # [rows, queries] flat index of each query slot
    back: Value  # [asking] slot of each asking row
    bias: Value  # [rows, 1, queries, width]


@dataclass(frozen=True, slots=True)
class Encoder:
    g: Graph
    architecture: Architecture
    parts: Parts
    linear: Linear

    def build(self) -> Value:
        """The last layer's hidden states at the chosen rows, [chosen, hidden]."""
        slot_tokens = self.g.input("slot_tokens", "int32", ["rows", "width"])
        token_slots = self.g.input("token_slots", "int32", ["tokens"])
        segments = self.g.input("segments", "int32", ["rows", "width"])
        chosen = self.g.input("chosen", "int32", ["chosen"])
        query_chosen = self.g.input("query_chosen", "int32", ["rows", "queries"])
        query_segments = self.g.input("query_segments", "int32", ["rows", "queries"])
        chosen_slots = self.g.input("chosen_slots", "int32", ["chosen"])
        everyone = Places(gather=slot_tokens, back=token_slots, bias=self._bias(segments, segments))
        selected = Places(gather=query_chosen, back=chosen_slots, bias=self._bias(query_segments, segments))

        hidden = self._embeddings()
        for i in range(self.architecture.layers - 1):
            hidden = self._layer(i, hidden, hidden, everyone, slot_tokens)
        asking = self.g.op("Gather", hidden, chosen, axis=0)
        return self._layer(self.architecture.layers - 1, asking, hidden, selected, slot_tokens)

    def _embeddings(self) -> Value:
        """LayerNorm(word + position + segment), and the projection where the tables are narrower than the encoder."""
        g, a = self.g, self.architecture
        ids, types, positions = (self._indices(name) for name in ("ids", "types" if a.segments > 1 else "", "positions"))
        with g.scope("embeddings"):
            word = g.weight("word", self.parts.weight("word", (a.vocabulary, a.embedding)))
            table = self.parts.weight("position", (a.position_offset + a.positions, a.embedding))
            table = table.rows(a.position_offset, a.position_offset + a.positions)
            for part, rows in (("segment", a.segments if a.segments == 1 else 0), ("task_type", a.task_types)):
                if rows:  # the first row is added to every token: fold it into the positions
                    table = table.plus(self.parts.weight(part, (rows, a.embedding)).rows(0, 1))
            position = g.weight("position", table)
            segment = g.weight("segment", self.parts.weight("segment", (a.segments, a.embedding))) if types else None
            gamma, beta = self._norm_weights("embedding_norm", a.embedding, 0)
            inputs = (ids, types, word, position, segment, gamma, beta, None, positions)
            embedded, _ = g.ops("EmbedLayerNormalization", *inputs, outputs=2, domain=CONTRIB, epsilon=a.norm_epsilon)
            return self._projected(g.op("Squeeze", embedded, g.constant(np.array([0], np.int64))))

    def _indices(self, name: str) -> Value | None:
        """The input `name` as [1, tokens]; None without a name."""
        return self.g.op("Unsqueeze", self.g.input(name, "int32", ["tokens"]), self.g.constant(np.array([0], np.int64))) if name else None

    def _projected(self, embedded: Value) -> Value:
        a, parts = self.architecture, self.parts
        if a.embedding == a.hidden and not parts.has("projection"):
            return embedded
        with self.g.scope("projection"):
            weight = self.g.weight("weight", parts.weight("projection", (a.hidden, a.embedding)))
            return self.g.op("Gemm", embedded, weight, self.g.weight("bias", parts.bias("projection", a.hidden)), transB=1)

    def _bias(self, queries: Value, keys: Value) -> Value:
        """0 where query and key belong to one sequence, NEVER elsewhere; [rows, 1, queries, width], shared by heads and layers."""
        g = self.g
        with g.scope("bias"):
            same = g.op("Equal", g.op("Unsqueeze", queries, g.constant(np.array([1, 3]))), g.op("Unsqueeze", keys, g.constant(np.array([1, 2]))))
            return g.op("Where", same, g.constant(np.float32(0)), g.constant(NEVER))

    def _layer(self, i: int, asking: Value, everyone: Value, places: Places, slot_tokens: Value) -> Value:
        """Attention and feed-forward block of layer `i` for the rows `asking` [asking, hidden], which attend to `everyone`."""
        g, a = self.g, self.architecture
        with g.scope(f"layers.{i}"):
            with g.scope("attention"):
                context = self._attention(i, asking, everyone, places, slot_tokens)
                attended = self._add_and_norm(i, context, asking, "attention", "attention_norm", a.hidden)
            with g.scope("feed_forward"):
                inner = self.linear(g, attended, self.parts.weight("intermediate", (a.intermediate, a.hidden), layer=i))
                inner = activate(g, inner, self.parts.bias("intermediate", a.intermediate, layer=i), a.activation)
                return self._add_and_norm(i, inner, attended, "output", "output_norm", a.intermediate)

    def _attention(self, i: int, asking: Value, everyone: Value, places: Places, slot_tokens: Value) -> Value:
        """softmax(Q K^T / sqrt(head size)) V per head and sequence; [asking, hidden]."""
        g, a = self.g, self.architecture
        rows = []
        for part, source, where in (("query", asking, places.gather), ("key", everyone, slot_tokens), ("value", everyone, slot_tokens)):
            with g.scope(part):
                flat = self.linear(g, source, self.parts.weight(part, (a.hidden, a.hidden), layer=i))
                rows.append(g.op("Gather", flat, where, axis=0))
        biases = [self.parts.bias(part, a.hidden, layer=i) for part in ("query", "key", "value")]
        origin = " and ".join(b.origin for b in biases)
        bias = g.weight("bias", Weight((3 * a.hidden,), lambda: np.concatenate([b.load() for b in biases]), origin))
        context = g.contrib("MultiHeadAttention", *rows, bias, None, places.bias, num_heads=a.heads)
        flat = g.op("Reshape", context, g.constant(np.array([-1, a.hidden], np.int64)))
        return g.op("Gather", flat, places.back, axis=0)

    def _add_and_norm(self, i: int, x: Value, residual: Value, part: str, norm: str, width: int) -> Value:
        """LayerNorm(residual + x W + b)."""
        g, a = self.g, self.architecture
        with g.scope(part):
            projected = self.linear(g, x, self.parts.weight(part, (a.hidden, width), layer=i))
            bias = g.weight("bias", self.parts.bias(part, a.hidden, layer=i))
        gamma, beta = self._norm_weights(norm, a.hidden, i)
        return g.contrib("SkipLayerNormalization", projected, residual, gamma, beta, bias, epsilon=a.norm_epsilon)

    def _norm_weights(self, part: str, size: int, layer: int) -> tuple[Value, Value]:
        with self.g.scope(part):
            weight = self.g.weight("weight", self.parts.weight(part, (size,), layer=layer))
            return weight, self.g.weight("bias", self.parts.bias(part, size, layer=layer))


def activate(g: Graph, x: Value, bias: Weight, activation: str) -> Value:
    """The activation of x + bias: GELU in its erf or tanh form (Hendrycks & Gimpel 2016), ReLU or tanh."""
    value = g.weight("bias", bias)
    match activation:
        case "gelu":
            return g.contrib("BiasGelu", x, value)
        case "gelu_tanh":
            return g.contrib("FastGelu", x, value)
        case "tanh":
            return g.op("Tanh", g.op("Add", x, value))
        case _:
            return g.op("Relu", g.op("Add", x, value))
