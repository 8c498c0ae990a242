"""The outputs `sentence` and `sparse`."""

from collections.abc import Callable, Sequence

import numpy as np

from ..artifact.rows import BLOCK, PART, PARTS, SHIFTS, SPARSE_BLOCK, WEIGHTED
from ..sentence import Dense, Layer, LayerNorm, SentenceModel
from .builder import TYPES, GraphBuilder, Value
from .linear import activate

SMALLEST_LENGTH = np.float32(1e-12)  # as in torch.nn.functional.normalize


def weighted_sums(g: GraphBuilder, hidden: Value, slots: Value, weights: Value, back: Value, width: int) -> Value:
    """[pooled, width]: the packed rows `slots` of `hidden` [selected, width] times `weights` [rows, sums, slots].

    Not ScatterND with reduction "add": ONNX Runtime 1.31 runs it on several threads that race for the same row.
    """
    # hidden states first and transposed: then threads divide the channels and not the sum over tokens
    sums = g.contrib("FusedMatMul", g.op("Gather", hidden, slots, axis=0), weights, transA=1, transB=1)
    rows = g.op("Transpose", sums, perm=[0, 2, 1])
    flat = g.op("Reshape", rows, g.int64(-1, width))
    return g.op("Gather", flat, back, axis=0)


def build_sentence(g: GraphBuilder, hidden: Value, channels: int, model: SentenceModel) -> None:
    """The output `sentence` [vectors, width] of float32 `hidden` [selected, channels]; the last Normalize is not in it.

    A maximum of maxima has the same bits in any order; all other steps work row by row.
    """
    with g.scope("sentence"):
        pooled = _pool(g, hidden, channels, model.modes)
        x = pooled[0] if len(pooled) == 1 else g.op("Concat", *pooled, axis=-1)
        x = _apply(g, x, model.layers, "modules")
        g.output("sentence", x, "float32", ["vectors", model.dimensions])


def build_token_outputs(g: GraphBuilder, tokens: Value, model: SentenceModel) -> None:
    """The outputs `multi` and `token_weights` [asked_tokens, width] of float32 `tokens`, those that the model has."""
    for name, layers in model.of_tokens.items():
        width = next(layer.weight.shape[0] for layer in reversed(layers) if isinstance(layer, Dense))
        g.output(name, _apply(g, tokens, layers, name), "float32", ["asked_tokens", width])


def _pool(g: GraphBuilder, hidden: Value, channels: int, modes: Sequence[str]) -> list[Value]:
    """[vectors, channels] for each mode."""
    pooled: dict[str, Value] = {}
    if weighted := [mode for mode in dict.fromkeys(modes) if mode in WEIGHTED]:
        slots = g.input("sentence_slots", "int32", ["rows_of_vectors", "width_of_vectors"])
        back = g.input("sentence_back", "int32", ["vectors"])
        for mode in weighted:
            shape = ["rows_of_vectors", "sums", "width_of_vectors"]
            weights = g.input(f"sentence_weights_{mode}", "float32", shape)
            pooled[mode] = weighted_sums(g, hidden, slots, weights, back, channels)
    for mode, name in (("cls", "sentence_first"), ("lasttoken", "sentence_last")):
        if mode in modes:
            pooled[mode] = g.op("Gather", hidden, g.input(name, "int32", ["vectors"]), axis=0)
    if "max" in modes:
        pooled["max"] = _maximum(g, hidden)
    return [pooled[mode] for mode in modes]


def _maximum(g: GraphBuilder, hidden: Value) -> Value:
    """The maximum over the tokens of blocks, then over the blocks of each sequence: [vectors, channels]."""
    blocks = g.input("sentence_blocks", "int32", ["blocks", f"at_most_{BLOCK}"])
    maxima = g.input("sentence_maxima", "int32", ["rows_of_maxima", "blocks_of_a_vector"])
    back = g.input("sentence_max_back", "int32", ["vectors"])
    axis = g.int64(1)
    of_blocks = g.op("ReduceMax", g.op("Gather", hidden, blocks, axis=0), axis, keepdims=0)
    of_sequences = g.op("ReduceMax", g.op("Gather", of_blocks, maxima, axis=0), axis, keepdims=0)
    return g.op("Gather", of_sequences, back, axis=0)


def _apply(g: GraphBuilder, x: Value, layers: Sequence[Layer], name: str) -> Value:
    """What the layers, each in a scope of this name and its number, make of each vector of `x` [rows, channels]."""
    for i, layer in enumerate(layers):
        with g.scope(f"{name}.{i}"):
            x = _apply_layer(g, x, layer)
    return x


def _apply_layer(g: GraphBuilder, x: Value, layer: Layer) -> Value:
    if isinstance(layer, Dense):
        bias = () if layer.bias is None else (g.weight("bias", layer.bias),)
        product = g.op("Gemm", x, g.weight("weight", layer.weight), *bias, transB=1)
        result = activate(g, product, layer.activation) if layer.activation else product
        if not layer.residual:
            return result
        other = layer.residual_weight
        return g.op("Add", result, x if other is None else g.op("Gemm", x, g.weight("residual", other), transB=1))
    if isinstance(layer, LayerNorm):
        weights = (g.weight("weight", layer.weight), g.weight("bias", layer.bias))
        return g.op("LayerNormalization", x, *weights, axis=-1, epsilon=layer.epsilon)
    length = g.op("ReduceL2", x, g.int64(-1), keepdims=1)
    return g.op("Div", x, g.op("Max", length, g.constant(SMALLEST_LENGTH)))


def build_sparse(g: GraphBuilder, product: Callable[[Value], Value], bias: Value) -> None:
    """The outputs `sparse_places` [weights, 2] (the part that ends a text, the id) and `sparse_logits` [weights].

    `product` makes the logits without bias, float32 [vocabulary, SPARSE_BLOCK], of the rows [SPARSE_BLOCK] of the last
    layer. The `bias` [vocabulary] is added to their maxima, which changes no bit: rounding keeps the order.
    """
    tokens = g.input("sparse_tokens", "int32", ["blocks_of_tokens", SPARSE_BLOCK])
    joins = g.input("sparse_joins", "float32", ["blocks_of_tokens", len(SHIFTS), 1 + PARTS, 1])
    ends = g.input("sparse_ends", "float32", ["blocks_of_tokens", PARTS, 1])
    offsets = g.input("sparse_offsets", "int32", ["blocks_of_tokens", 2, 1])
    count = g.input("sparse_count", "int64", [1])

    def next_block(number: Value, last: Sequence[Value]) -> Sequence[Value]:
        before, places, logits = last
        inputs = (tokens, joins, ends, offsets)
        own_tokens, own_joins, own_ends, own_offsets = (g.op("Gather", one, number, axis=0) for one in inputs)
        with g.scope("maximum"):
            maxima = _maxima(g, product(own_tokens), before, own_joins)
        own_places, own_logits = _above_zero(g, maxima, bias, own_ends)
        own_places = g.op("Add", own_places, g.op("Cast", own_offsets, to=int(TYPES["int64"])))
        return (
            g.op("Gather", maxima, g.constant(np.int64(PARTS)), axis=0),
            g.op("Concat", places, own_places, axis=1),
            g.op("Concat", logits, own_logits, axis=0),
        )

    with g.scope("sparse"):
        # no text goes on before the first block: any row serves as the maximum before it
        start = {
            bias: "float32",
            g.constant(np.zeros((2, 0), np.int64)): "int64",
            g.constant(np.zeros(0, np.float32)): "float32",
        }
        _, places, logits = g.loop(count, start, next_block)
        g.output("sparse_places", g.op("Transpose", places, perm=[1, 0]), "int64", ["weights", 2])
        g.output("sparse_logits", logits, "float32", ["weights"])


def _maxima(g: GraphBuilder, logits: Value, before: Value, joins: Value) -> Value:
    """[1 + parts, vocabulary]: of each part and all parts of its text before it; first of the block `before`."""
    split = g.op("Reshape", logits, g.int64(0, PARTS, PART))
    of_parts = g.op("Transpose", g.op("ReduceMax", split, g.int64(2), keepdims=0), perm=[1, 0])
    maxima = g.op("Concat", g.op("Unsqueeze", before, g.int64(0)), of_parts, axis=0)
    for i, shift in enumerate(SHIFTS):
        places = [max(0, part - shift) for part in range(1 + PARTS)]
        shifted = g.op("Gather", maxima, g.int64(*places), axis=0)
        join = g.op("Gather", joins, g.constant(np.int64(i)), axis=0)
        maxima = g.op("Max", maxima, g.op("Add", shifted, join))
    return maxima


def _above_zero(g: GraphBuilder, maxima: Value, bias: Value, ends: Value) -> tuple[Value, Value]:
    """Of the parts that end a text: [2, n], the part and the id of each logit above zero, and the logits [n]."""
    logits = g.op("Add", g.op("Gather", maxima, g.int64(*range(1, 1 + PARTS)), axis=0), bias)
    of_texts = g.op("Mul", g.op("Relu", logits), ends)
    places = g.op("NonZero", of_texts)
    return places, g.op("GatherND", of_texts, g.op("Transpose", places, perm=[1, 0]))
