"""Masked rows in, their logits over the vocabulary out: the largest product of all, in the precision of the encoder's products.

In int8 only to find out which words are likely. Those get the logits that fp32 would give them, and so does whoever is asked for by
name: the rows of a few words are read, not the whole table, which for a handful of masks is what the time goes into.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.graph.builder import GraphBuilder, Value
from model_export.graph.linear import multiply, quantize

SHORTLIST = 64  # words a mask; not a multiple of what is asked for, since an answer must not change with what its neighbours ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What turns rows of width `weight.shape[1]` into logits."""

    weight: LazyWeight  # [vocabulary, width]
    rows: Value  # the same in the graph
    bias: Value  # [vocabulary]


class Scores(Protocol):
    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        """Of every word for every row of `x` [masks, width]; [masks, vocabulary]."""

    def selected(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:
        """Of the (mask, vocabulary id) `pairs` [targets, 2]; [targets]."""


class ExactLogits:
    """One product, with the word embeddings as they lie there where the decoder is tied to them."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        return g.op("Gemm", x, decoder.rows, decoder.bias, transB=1)

    def selected(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        return g.op("GatherND", logits, pairs)


class Int8Shortlist:
    """int8 for all words, then fp32 for the LIKELY best of each mask."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        with g.scope("guess"):
            # not ReduceMax: this head also runs where there is no mask, and of no rows ONNX Runtime 1.31 reduces none
            largest, _ = g.ops(
                "TopK", g.op("Abs", x), g.constant(np.array([1], np.int64)), outputs=2, axis=-1, largest=1, sorted=0
            )
            guessed = g.op("Add", multiply(g, quantize(g, x, largest), decoder.weight), decoder.bias)
            likely = min(SHORTLIST, decoder.weight.shape[0])
            _, ids = g.ops(
                "TopK", guessed, g.constant(np.array([likely], np.int64)), outputs=2, axis=-1, largest=1, sorted=0
            )
        with g.scope("likely"):
            column = g.op("Unsqueeze", x, g.constant(np.array([2], np.int64)))
            products = g.op("MatMul", g.op("Gather", decoder.rows, ids, axis=0), column)
            exact = g.op(
                "Add",
                g.op("Squeeze", products, g.constant(np.array([2], np.int64))),
                g.op("Gather", decoder.bias, ids, axis=0),
            )
            return g.op("ScatterElements", guessed, ids, exact, axis=1)

    def selected(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        """Each pair is a product of its own, a row with a column, whatever else is asked for."""
        with g.scope("targets"):
            masks, ids = (g.op("Gather", pairs, g.constant(np.int64(column)), axis=1) for column in (0, 1))
            row = g.op("Unsqueeze", g.op("Gather", decoder.rows, ids, axis=0), g.constant(np.array([1], np.int64)))
            column = g.op("Unsqueeze", g.op("Gather", x, masks, axis=0), g.constant(np.array([2], np.int64)))
            products = g.op("Squeeze", g.op("MatMul", row, column), g.constant(np.array([1, 2], np.int64)))
            return g.op("Add", products, g.op("Gather", decoder.bias, ids, axis=0))
