"""The outputs `sparse_*`: the logit of each word of the vocabulary where it is above zero, the maximum over the tokens
of a text. The logarithm is left to the reader: ONNX Runtime rounds it by the place of a number in its array.

Its inputs and its steps are those of `artifact/feeds/sparse`. A loop computes a block of tokens at a time, and nothing
where no text asks for it. The table is the left side of the product, [vocabulary, width] times [width, tokens]: ONNX
Runtime packs only the right side, so the table is not stored a second time.
"""

from collections.abc import Callable, Sequence

import numpy as np

from model_export.artifact.feeds.sparse import BLOCK, PART, PARTS, SHIFTS
from model_export.graph.builder import TYPES, GraphBuilder, Value


def build_sparse(
    g: GraphBuilder,
    product: Callable[[Value], Value],
    bias: Value,
) -> None:
    """The outputs `sparse_places` [weights, 2] (the part that ends a text, the id) and `sparse_logits` [weights].

    `product` makes the logits without bias, float32 [vocabulary, BLOCK], of the rows [BLOCK] of the last layer. The
    `bias` [vocabulary] is added to their maxima, which changes no bit: rounding keeps the order.
    """
    tokens = g.input("sparse_tokens", "int32", ["blocks_of_tokens", BLOCK])
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

    with g.using_dtype("float32"), g.scope("sparse"):
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
    split = g.op("Reshape", logits, _int64(g, (0, PARTS, PART)))
    of_parts = g.op("Transpose", g.op("ReduceMax", split, _int64(g, (2,)), keepdims=0), perm=[1, 0])
    maxima = g.op("Concat", g.op("Unsqueeze", before, _int64(g, (0,))), of_parts, axis=0)
    for i, shift in enumerate(SHIFTS):
        places = [max(0, part - shift) for part in range(1 + PARTS)]
        shifted = g.op("Gather", maxima, _int64(g, places), axis=0)
        join = g.op("Gather", joins, g.constant(np.int64(i)), axis=0)
        maxima = g.op("Max", maxima, g.op("Add", shifted, join))
    return maxima


def _above_zero(g: GraphBuilder, maxima: Value, bias: Value, ends: Value) -> tuple[Value, Value]:
    """Of the parts that end a text: [2, n], the part and the id of each logit above zero, and the logits [n]."""
    logits = g.op("Add", g.op("Gather", maxima, _int64(g, range(1, 1 + PARTS)), axis=0), bias)
    of_texts = g.op("Mul", g.op("Relu", logits), ends)
    places = g.op("NonZero", of_texts)
    return places, g.op("GatherND", of_texts, g.op("Transpose", places, perm=[1, 0]))


def _int64(g: GraphBuilder, numbers: Sequence[int]) -> Value:
    return g.constant(np.array(numbers, np.int64))
