"""Pooled outputs: the weighted sums of a sequence's tokens, and the head `sentence`, a checkpoint's own vector."""

from collections.abc import Sequence

import numpy as np

from model_export.artifact.feeds.pooled import BLOCK, WEIGHTINGS
from model_export.checkpoints.sentence_modules import Dense, Layer, LayerNorm, SentenceModel
from model_export.graph.builder import GraphBuilder, Value
from model_export.graph.linear import activate

SMALLEST_LENGTH = np.float32(1e-12)  # as in torch.nn.functional.normalize


def weighted_sums(g: GraphBuilder, hidden: Value, slots: Value, weights: Value, back: Value, width: int) -> Value:
    """[pooled, width]: the packed rows `slots` of `hidden` [selected, width] times `weights` [rows, sums, slots].

    Not ScatterND with reduction "add": ONNX Runtime 1.31 runs it on several threads that race for the same row.
    """
    # hidden states first and transposed: then threads divide the channels and not the sum over tokens
    sums = g.contrib("FusedMatMul", g.op("Gather", hidden, slots, axis=0), weights, transA=1, transB=1)
    rows = g.op("Transpose", sums, perm=[0, 2, 1])
    flat = g.op("Reshape", rows, g.constant(np.array([-1, width], np.int64)))
    return g.op("Gather", flat, back, axis=0)


def build_sentence(g: GraphBuilder, hidden: Value, channels: int, model: SentenceModel) -> None:
    """The output `sentence` [vectors, width] of float32 `hidden` [selected, channels]; the last Normalize is not in it.

    A maximum of maxima has the same bits in any order; all other steps work row by row.
    """
    with g.using_dtype("float32"), g.scope("sentence"):
        pooled = _pool(g, hidden, channels, model.modes)
        x = pooled[0] if len(pooled) == 1 else g.op("Concat", *pooled, axis=-1)
        for i, layer in enumerate(model.layers):
            with g.scope(f"modules.{i}"):
                x = _apply(g, x, layer)
        g.output("sentence", x, "float32", ["vectors", model.width])


def _pool(g: GraphBuilder, hidden: Value, channels: int, modes: Sequence[str]) -> list[Value]:
    """One [vectors, channels] per mode."""
    pooled: dict[str, Value] = {}
    if weighted := [mode for mode in dict.fromkeys(modes) if mode in WEIGHTINGS]:
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
    axis = g.constant(np.array([1], np.int64))
    of_blocks = g.op("ReduceMax", g.op("Gather", hidden, blocks, axis=0), axis, keepdims=0)
    of_sequences = g.op("ReduceMax", g.op("Gather", of_blocks, maxima, axis=0), axis, keepdims=0)
    return g.op("Gather", of_sequences, back, axis=0)


def _apply(g: GraphBuilder, x: Value, layer: Layer) -> Value:
    if isinstance(layer, Dense):
        bias = () if layer.bias is None else (g.weight("bias", layer.bias),)
        product = g.op("Gemm", x, g.weight("weight", layer.weight), *bias, transB=1)
        result = _activated(g, product, layer.activation)
        if not layer.residual:
            return result
        other = layer.residual_weight
        return g.op("Add", result, x if other is None else g.op("Gemm", x, g.weight("residual", other), transB=1))
    if isinstance(layer, LayerNorm):
        weights = (g.weight("weight", layer.weight), g.weight("bias", layer.bias))
        return g.op("LayerNormalization", x, *weights, axis=-1, epsilon=layer.epsilon)
    length = g.op("ReduceL2", x, g.constant(np.array([-1], np.int64)), keepdims=1)
    return g.op("Div", x, g.op("Max", length, g.constant(SMALLEST_LENGTH)))


def _activated(g: GraphBuilder, x: Value, activation: str) -> Value:
    match activation:
        case "":
            return x
        case "sigmoid":
            return g.op("Sigmoid", x)
        case "silu":
            return g.op("Mul", x, g.op("Sigmoid", x))
        case _:
            return activate(g, x, activation)
