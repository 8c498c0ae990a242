"""Runs graphs on the CPU, also those for CUDA."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, parser

from ..artifact.batch import Arrays
from ..artifact.cpu import BF16
from ..artifact.manifest import HEADS, LAYERS, PACKED_ROWS

PACKED, DOMAIN = "PackedMultiHeadAttention", "reference"
DEFINITION = """
<opset_import: ["" : 20], domain: "reference">
PackedMultiHeadAttention <num_heads> (query, key, value, bias, token_offset, cumulative_lengths) => (output)
{
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [2147483647]> ()
    axis = Constant <value_ints = [-1]> ()
    heads = Constant <value_int : int = @num_heads> ()
    heads1 = Unsqueeze (heads, zero)
    split_heads = Concat <axis = 0> (zero, heads1, axis)
    q3 = Reshape (query, split_heads)
    k3 = Reshape (key, split_heads)
    v3 = Reshape (value, split_heads)
    qh = Transpose <perm = [1, 0, 2]> (q3)
    kh = Transpose <perm = [1, 2, 0]> (k3)
    vh = Transpose <perm = [1, 0, 2]> (v3)
    products = MatMul (qh, kh)
    width = Shape <start = 2> (qh)
    width_as = CastLike (width, query)
    root = Sqrt (width_as)
    scores = Div (products, root)
    count = Shape <start = 0, end = 1> (query)
    count0 = Squeeze (count)
    zero0 = Squeeze (zero)
    one0 = Squeeze (one)
    tokens = Range (zero0, count0, one0)
    ends = Slice (cumulative_lengths, one, last)
    ends64 = Cast <to = 7> (ends)
    tokens_column = Unsqueeze (tokens, one)
    ends_row = Unsqueeze (ends64, zero)
    after = GreaterOrEqual (tokens_column, ends_row)
    after64 = Cast <to = 7> (after)
    owner = ReduceSum <keepdims = 0> (after64, one)
    owner_column = Unsqueeze (owner, one)
    owner_row = Unsqueeze (owner, zero)
    same = Equal (owner_column, owner_row)
    masked32 = Constant <value_float = -60000.0> ()
    masked = CastLike (masked32, query)
    kept = Where (same, scores, masked)
    probabilities = Softmax <axis = -1> (kept)
    context = MatMul (probabilities, vh)
    back = Transpose <perm = [1, 0, 2]> (context)
    flat = Shape (query)
    output = Reshape (back, flat)
}
"""


def write_portable(model: Path) -> Path:
    """Writes the portable graph beside `model`, whose weights file it shares; returns its path."""
    loaded = onnx.load(model, load_external_data=False)
    del loaded.functions[:]
    loaded.functions.append(parser.parse_function(DEFINITION))
    loaded.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    for node in loaded.graph.node:
        if node.op_type == PACKED:
            node.domain = DOMAIN
    path = model.with_name("portable.onnx")
    onnx.save(loaded, path)
    return path


class Graph(Protocol):
    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """The outputs `names`; `feeds` may hold more than the graph reads."""


class OrtGraph:
    def __init__(self, path: Path, *, as_served: bool = False) -> None:
        """`as_served`: faster than otherwise, with a copy of the weights in memory."""
        options = ort.SessionOptions()
        if as_served:
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        else:
            options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay mapped
            # a small model waits more than it runs
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        results: list[NDArray[np.generic]]
        results = self._session.run(names, {name: array for name, array in feeds.items() if name in self._inputs})
        return results


class Bf16Graph:
    """The hidden states by OpenVINO, the rest by the heads' own graph."""

    def __init__(self, path: Path) -> None:
        from ..artifact.openvino import OpenVinoEncoder  # other precisions do without OpenVINO

        self._encoder = OpenVinoEncoder(path.with_name(LAYERS), all_layers=path.name == LAYERS, threads=0)
        self._heads = OrtGraph(path.with_name(HEADS))

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        return self._encoder.run_with_heads(self._heads.run, names, feeds)


def open_graph(path: Path, layout: str, precision: str) -> Graph:
    """Runs on the CPU whatever the device: CUDA's attention is replaced by its definition in plain operators."""
    if precision == BF16:
        return Bf16Graph(path)
    runnable = path if layout == PACKED_ROWS else write_portable(path)
    graph = OrtGraph(runnable)
    if runnable != path:
        runnable.unlink()
    return graph
