"""Runs graphs on the CPU, also those for CUDA."""

from functools import partial
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import helper, parser

from ..artifact.batch import RunGraph
from ..artifact.cpu import BF16
from ..artifact.manifest import HEADS, LAYERS, PACKED_ROWS

PACKED, DOMAIN = "PackedMultiHeadAttention", "reference"
DEFINITION = """
<opset_import: ["" : 20], domain: "reference">
PackedMultiHeadAttention <num_heads> (query, key, value, bias, token_offset, cumulative_lengths) => (output)
{
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
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
    starts = Cast <to = 7> (cumulative_lengths)
    tokens_column = Unsqueeze (tokens, one)
    starts_row = Unsqueeze (starts, zero)
    after = GreaterOrEqual (tokens_column, starts_row)
    after64 = Cast <to = 7> (after)
    owner_column = ReduceSum (after64, one)
    owner_row = Transpose (owner_column)
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


def open_graph(path: Path, layout: str, precision: str) -> RunGraph:
    """Runs on the CPU whatever the device: CUDA's attention is replaced by its definition in plain operators."""
    if precision == BF16:
        return open_in_bf16(path)
    if layout == PACKED_ROWS:
        return open_in_ort(path)
    portable = write_portable(path)
    run = open_in_ort(portable)
    portable.unlink()
    return run


def open_in_ort(path: Path, *, as_served: bool = False) -> RunGraph:
    """`as_served`: faster than otherwise, with a copy of the weights in memory."""
    options = ort.SessionOptions()
    if as_served:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    else:
        options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay mapped
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0"
        )  # a small model waits more than it runs
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {one.name for one in session.get_inputs()}
    return lambda names, feeds: session.run(names, {name: feeds[name] for name in inputs})


def open_in_bf16(path: Path) -> RunGraph:
    """The hidden states by OpenVINO, the rest by the heads' own graph."""
    from ..artifact.openvino import OpenVinoEncoder  # other precisions do without OpenVINO

    encoder = OpenVinoEncoder(path.with_name(LAYERS), all_layers=path.name == LAYERS, threads=0)
    return partial(encoder.run_with_heads, open_in_ort(path.with_name(HEADS)))
