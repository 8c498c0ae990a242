"""Makes a CUDA graph runnable on a CPU: replaces its packed attention by the operator's definition in plain operators.

Its results verify the arithmetic of everything around the attention kernel without a GPU. It is slow: all tokens attend
to all tokens, and the scores between sequences are masked afterwards.
"""

from pathlib import Path

import onnx_ir as ir
from onnx import parser

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
    loaded = ir.load(model)
    loaded.functions.clear()
    function = ir.serde.deserialize_function(parser.parse_function(DEFINITION))
    loaded.functions[function.identifier()] = function
    loaded.graph.opset_imports[DOMAIN] = 1
    for node in loaded.graph:
        if node.op_type == PACKED:
            node.domain = DOMAIN
    path = model.with_name("portable.onnx")
    ir.save(loaded, path)
    return path
