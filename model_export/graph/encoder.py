"""The encoder (Devlin et al. 2018; Vaswani et al. 2017, post-norm), on flat tokens, and the graphs of its states.

    ids, types, positions [tokens] -> embeddings -> layer x (L - 1) on all tokens -> last layer on the selected tokens

Linear layers, norms and GELU do not know where a sequence ends; `attention.py` does.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..artifact.batch import LAST, OFFSETS, attention_name, hidden_name
from ..checkpoint import NamedWeights
from ..lazy_weight import Array, Dense, LazyWeight, affine_at
from .attention import Attention, Projections
from .builder import CONTRIB, GraphBuilder, Value
from .channel_shift import NoShift
from .disentangled import add_convolution, disentangle
from .linear import Linear, Norm


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder with a norm after attention and after feed-forward."""

    g: GraphBuilder
    parts: NamedWeights
    linear: Linear
    attention: Attention
    shift: NoShift

    def build(self) -> Value:
        """The hidden states of the selected tokens after the last layer, [selected, hidden].

        The states after the embeddings and each layer get names by which `write_layers` finds them.
        """
        selected, layers = self.g.input("chosen", "int32", ["chosen"]), self.parts.architecture.layers
        self.attention.declare()
        states = [self._embeddings()]
        for i in range(layers - 1):
            states.append(self._layer(i, states[i], states[i]))
            if i == 0 and self.parts.architecture.relative.convolution:
                states[-1] = self._convolve(*states)
        asked = self.g.op("Gather", states[-1], selected, axis=0)
        states.append(self._finish(self._layer(layers - 1, asked, states[-1])))
        for i, value in enumerate(states):
            value.name = hidden_name(LAST if i == layers else i)
        return states[-1]

    def build_attention(self) -> None:
        """The attention probabilities of each layer, in float32, from the states before it, in the graph's dtype."""
        g, a, dtype = self.g, self.parts.architecture, self.g.dtype
        for i in range(a.layers):
            states = g.input(hidden_name(i), dtype, [f"tokens.{i}", a.hidden])
            with g.scope(f"layers.{i}"), g.scope("attention"):
                states = self._attention_input(i, states)
                found = self.attention.probabilities(self._projections(i), states)
            with g.using_dtype("float32"):
                g.expose(attention_name(i), g.cast(found, dtype), "float32", [a.heads, f"tokens.{i}", f"tokens.{i}"])

    def _projections(self, layer: int) -> Projections:
        """The projections of a layer's attention, which reads activation 2 * `layer`."""
        hidden = self.parts.architecture.hidden
        dense = (self.parts.dense(part, hidden, hidden, layer=layer) for part in ("query", "key", "value"))
        query, key, value = (self.shift.compensate_dense(weights, 2 * layer) for weights in dense)
        found = Projections(query=query, key=key, value=value, layer=layer)
        return disentangle(self.parts, found) if self.parts.architecture.positional == "disentangled" else found

    def _attention_input(self, layer: int, states: Value) -> Value:
        """The form in which the projections of `layer` read the `states` [tokens, hidden] before it; same shape."""
        return self.shift.balanced(self.g, states, 2 * layer, self.parts.architecture.hidden)

    def _embeddings(self) -> Value:
        """LayerNorm(word + position + segment), and the projection if the tables are narrower than the encoder."""
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
            norm = self._norm("embedding_norm", 0, index, a.embedding)
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
            norm = self._norm("embedding_norm", 0, index, a.embedding)
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
        g, a = self.g, self.parts.architecture
        with g.scope(f"layers.{i}"):
            with g.scope("attention"):
                projections, last = self._projections(i), i == a.layers - 1
                weight, bias = self.parts.dense("attention", a.hidden, a.hidden, layer=i)
                if not (a.rotary and a.rotary[i].turns_values):
                    bias = affine_at(weight, projections.value[1], bias)
                read = self._attention_input(i, key_value_states)
                asked = self._attention_input(i, query_states) if last else read
                context = self.attention.context(projections, asked, read, last=last)
                attended = self._add_attention(i, context, (weight, bias), query_states)
            with g.scope("feed_forward"):
                return self._add_feed_forward(
                    i, attended, self.parts.dense("output", a.hidden, a.intermediate, layer=i)
                )

    def _add_attention(self, i: int, context: Value, dense: Dense, states: Value) -> Value:
        """LayerNorm(states + context W + b)."""
        weight, bias = dense[0], self.shift.compensate_sum(dense[1], 2 * i)
        return self.linear.add_and_norm(context, weight, bias, states, self._norm("attention_norm", i, 2 * i + 1))

    def _add_feed_forward(self, i: int, attended: Value, dense: Dense) -> Value:
        """LayerNorm(attended + inner W + b)."""
        inner = self._inner(i, attended, dense[0])
        weight, bias = self.shift.split_inputs(dense[0]), self.shift.compensate_sum(dense[1], 2 * i + 1)
        norm = self._norm(
            "output_norm", i, None if i == 0 and self.parts.architecture.relative.convolution else 2 * i + 2
        )
        return self.linear.add_and_norm(inner, weight, bias, attended, norm)

    def _finish(self, last: Value) -> Value:
        """The output of the encoder from that of its `last` layer."""
        return last

    def _inner(self, layer: int, x: Value, reader: LazyWeight) -> Value:
        """f(x W + b), times x V + c if the feed-forward is gated; `x` is activation 2 * `layer` + 1.

        `reader` [hidden, inner] is the weight that reads the result.
        """
        index = 2 * layer + 1
        g, a, shift = self.g, self.parts.architecture, self.shift
        x = shift.balanced(g, x, index, a.hidden)

        def dense(part: str) -> Dense:
            read = self.parts.dense(part, a.intermediate, a.hidden, layer=layer)
            return shift.split_results(shift.compensate_dense(read, index), reader)

        inner = self.linear.linear_activation(x, *dense("intermediate"), a.activation)
        if not a.is_gated:
            return inner
        with g.scope("gate"):
            return g.op("Mul", inner, self.linear.affine(x, *dense("gate")))

    def _convolve(self, embedded: Value, states: Value) -> Value:
        with self.g.scope("layers.0"):
            norm = self._norm("convolution_norm", 0, 2)
            return add_convolution(self.parts, self.linear, self.shift, embedded, states, norm)

    def _norm(self, part: str, layer: int, index: int | None, size: int | None = None) -> Norm:
        """The norm of `size` channels (None: hidden) that produces activation `index`; None is not shifted."""
        weight, bias = self.parts.norm(part, size or self.parts.architecture.hidden, layer=layer)
        return self._shifted(part, weight, bias if index is None else self.shift.lower(bias, index))

    def _shifted(self, part: str, weight: LazyWeight, bias: LazyWeight) -> Norm:
        with self.g.scope(part):
            gamma, beta = self.g.weight("weight", weight), self.g.weight("bias", bias)
        return Norm(gamma=gamma, beta=beta, epsilon=self.parts.architecture.norm_epsilon)


class PrenormEncoder(Encoder):
    """An encoder with norms before attention (but in the first layer), before feed-forward and at the end."""

    def _attention_input(self, layer: int, states: Value) -> Value:
        if layer > 0:
            states = self._norm("attention_norm", layer, 2 * layer).of(self.g, states)
        return super()._attention_input(layer, states)

    def _add_attention(self, i: int, context: Value, dense: Dense, states: Value) -> Value:  # noqa: ARG002
        """states + context W + b."""
        return self.g.op("Add", self.linear.affine(context, *dense), states)

    def _add_feed_forward(self, i: int, attended: Value, dense: Dense) -> Value:
        """attended + inner W + b; feed-forward reads the norm of `attended`."""
        reader, bias = dense
        inner = self._inner(i, self._norm("output_norm", i, 2 * i + 1).of(self.g, attended), reader)
        return self.g.op("Add", self.linear.affine(inner, self.shift.split_inputs(reader), bias), attended)

    def _finish(self, last: Value) -> Value:
        return self._norm("final_norm", 0, 2 * self.parts.architecture.layers).of(self.g, last)


class TwiceNormedEncoder(Encoder):
    """An encoder with two norms after attention (JinaBERT for code)."""

    def _add_attention(self, i: int, context: Value, dense: Dense, states: Value) -> Value:
        """LayerNorm(states + x) with x = LayerNorm(states + context W + b)."""
        weight, bias = self.parts.norm("attention_norm", self.parts.architecture.hidden, layer=i)
        norm = self._shifted("attention_norm", weight, self.shift.compensate_sum(bias, 2 * i))
        shifted = self.shift.compensate_sum(dense[1], 2 * i)
        attended = self.linear.add_and_norm(context, dense[0], shifted, states, norm)
        return self._norm("second_norm", i, 2 * i + 1).of(self.g, self.g.op("Add", attended, states))


def declare_states(g: GraphBuilder, parts: NamedWeights, offsets: LazyWeight) -> Value:
    """The input of a graph of the heads alone: the states [chosen, hidden] of the last layer, which another graph gave.

    The graph also has the output OFFSETS, and the table of words, which a decoder may read.
    """
    a = parts.architecture
    states = g.input(hidden_name(LAST), g.dtype, ["chosen", a.hidden])
    g.output(OFFSETS, g.constant(offsets.load()), "float32", list(offsets.shape))
    if parts.has("mlm_dense"):
        with g.scope("embeddings"):
            g.weight("word", parts.weight("word", (a.vocabulary, a.embedding)))
    return states


def write_layers(path: Path, model: Path, offsets: Array, dtype: str) -> None:
    """Writes the graph beside the written `model`: its outputs, the states in `dtype`, and `offsets` as OFFSETS.

    `offsets` [layers + 1, hidden], in float32, were subtracted from the states by the channel shift.
    """
    written = onnx.load(model, load_external_data=False)
    graph, (states, hidden) = written.graph, offsets.shape
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for layer in range(states):
        last = layer == states - 1
        name, rows = hidden_name(LAST if last else layer), "chosen" if last else "tokens"
        graph.output.append(helper.make_tensor_value_info(name, kind, [rows, hidden]))
    graph.initializer.append(numpy_helper.from_array(offsets, OFFSETS))
    graph.output.append(helper.make_tensor_value_info(OFFSETS, onnx.TensorProto.FLOAT, list(offsets.shape)))
    onnx.save(written, path)
