"""The masked-LM head's product with the vocabulary, the largest of all, in the precision of the encoder.

int8 only selects a shortlist of likely words. Those get their fp32 logits, and so do requested targets: the rows of a
few words are read instead of the whole table, which takes most of the time for a few masks.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.graph.builder import GraphBuilder, Value
from model_export.graph.linear import multiply, quantize

SHORTLIST = 64  # words per mask, whatever top_k is: an answer must not change with the top_k of other requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The product that turns rows [masks, width] into logits [masks, vocabulary]."""

    weight: LazyWeight  # [vocabulary, width]
    rows: Value  # the same in the graph
    bias: Value  # [vocabulary]


class LmHead(Protocol):
    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        """The logits [masks, vocabulary] of the rows `x` [masks, width]."""

    def target_logits(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:
        """The logits [targets] of the (mask, vocabulary id) `pairs` [targets, 2]."""


class ExactLogits:
    """One product for all words, with the word embeddings if the decoder is tied to them."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        return g.op("Gemm", x, decoder.rows, decoder.bias, transB=1)

    def target_logits(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        return g.op("GatherND", logits, pairs)


class Int8Shortlist:
    """int8 for all words, then fp32 for the SHORTLIST best of each mask."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        with g.scope("guess"):
            # not ReduceMax: this head also runs without masks, and ONNX Runtime 1.31 reduces no rows to no rows
            one = g.constant(np.array([1], np.int64))
            largest, _ = g.ops("TopK", g.op("Abs", x), one, outputs=2, axis=-1, largest=1, sorted=0)
            guess = g.op("Add", multiply(g, quantize(g, x, largest), decoder.weight), decoder.bias)
            count = g.constant(np.array([min(SHORTLIST, decoder.weight.shape[0])], np.int64))
            _, ids = g.ops("TopK", guess, count, outputs=2, axis=-1, largest=1, sorted=0)
        with g.scope("likely"):
            axis = g.constant(np.array([2], np.int64))
            column = g.op("Unsqueeze", x, axis)
            products = g.op("Squeeze", g.op("MatMul", g.op("Gather", decoder.rows, ids, axis=0), column), axis)
            exact = g.op("Add", products, g.op("Gather", decoder.bias, ids, axis=0))
            return g.op("ScatterElements", guess, ids, exact, axis=1)

    def target_logits(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        """Each pair is its own product of a row and a column, so that it does not depend on the others."""
        with g.scope("targets"):
            masks, ids = (g.op("Gather", pairs, g.constant(np.int64(column)), axis=1) for column in (0, 1))
            row = g.op("Unsqueeze", g.op("Gather", decoder.rows, ids, axis=0), g.constant(np.array([1], np.int64)))
            column = g.op("Unsqueeze", g.op("Gather", x, masks, axis=0), g.constant(np.array([2], np.int64)))
            products = g.op("Squeeze", g.op("MatMul", row, column), g.constant(np.array([1, 2], np.int64)))
            return g.op("Add", products, g.op("Gather", decoder.bias, ids, axis=0))
