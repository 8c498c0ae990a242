"""The graph of the hidden states: the model's own graph, whose values between the layers are outputs too.

It is a file of its own, because ONNX Runtime keeps every output of a graph until the run ends, fetched or not, and does
not use its memory again for the values after it. It names the same weights in the same file.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from model_export.artifact.feeds.layers import LAST, OFFSETS, hidden_name
from model_export.checkpoints.lazy_weight import Array
from model_export.graph.builder import Value


def name_states(states: Sequence[Value]) -> None:
    """Names the states after the embeddings and each layer, so that `write_layers` finds them in the written graph."""
    for layer, value in enumerate(states):
        value.name = hidden_name(LAST if layer == len(states) - 1 else layer)


def write_layers(path: Path, model: Path, offsets: Array, dtype: str) -> None:
    """Writes the graph beside the written `model`: its outputs, the states in `dtype`, and `offsets` as OFFSETS.

    `offsets` [layers + 1, hidden] are what the channel shift took from each state, in float32.
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
