"""Graphs of hidden states and of attention probabilities."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..artifact.batch import LAST, OFFSETS, attention_name, hidden_name
from ..checkpoint import NamedWeights
from ..lazy_weight import Array, LazyWeight
from .builder import GraphBuilder, Value
from .encoder import Encoder


def build_attention(encoder: Encoder) -> None:
    """Inputs in the dtype of the graph, outputs in float32. Weights get the names that the encoder gives them."""
    g, a, dtype = encoder.g, encoder.parts.architecture, encoder.g.dtype
    for i in range(a.layers):
        states = g.input(hidden_name(i), dtype, [f"tokens.{i}", a.hidden])
        with g.scope(f"layers.{i}"), g.scope("attention"):
            states = encoder.attention_input(i, states)
            found = encoder.attention.probabilities(encoder.projections(i), states)
        with g.using_dtype("float32"):
            g.expose(attention_name(i), g.cast(found, dtype), "float32", [a.heads, f"tokens.{i}", f"tokens.{i}"])


def name_states(states: Sequence[Value]) -> None:
    """Names the states after the embeddings and each layer, so that `write_layers` finds them in the written graph."""
    for layer, value in enumerate(states):
        value.name = hidden_name(LAST if layer == len(states) - 1 else layer)


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
