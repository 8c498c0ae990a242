"""What is read off the hidden states: each head takes the chosen rows [chosen, hidden] and names its outputs.

A head whose weights are missing is left out of the graph; `missing` says so. Nothing is ever filled with random weights.
"""

from dataclasses import dataclass, field

import numpy as np

from model_export.architecture import Architecture
from model_export.checkpoint import Weight
from model_export.encoder import activate
from model_export.families import Family, Parts
from model_export.graph import Graph, Value


@dataclass(slots=True)
class Heads:
    g: Graph
    architecture: Architecture
    family: Family
    parts: Parts
    hidden: Value  # [chosen, hidden]
    present: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def build(self) -> None:
        """Everything in float32 but the product with the vocabulary, which is large enough to matter."""
        precision = self.g.computes
        with self.g.computing_in("float32"):
            self.hidden = self.g.cast(self.hidden, precision)
            self._build(precision)

    def _build(self, precision: str) -> None:
        cls = self.g.op("Gather", self.hidden, self.g.input("cls_index", "int32", ["sequences"]), axis=0)
        self.g.output("cls", cls, "float32", ["sequences", self.architecture.hidden])
        self.present += ["cls", "mean"]
        self._mean()
        self._pooled(cls)
        self._vocabulary(precision)

    def _mean(self) -> None:
        """The mean over all tokens of a sequence, special tokens included, as the product of 1 / length with the packed rows.

        Not ScatterND with reduction "add": ONNX Runtime 1.31 runs it on several threads that race for the same row.
        """
        g, hidden = self.g, self.architecture.hidden
        slots = g.input("mean_slots", "int32", ["rows_of_means", "width_of_means"])
        weights = g.input("mean_weights", "float32", ["rows_of_means", "means", "width_of_means"])
        back = g.input("mean_back", "int32", ["pooled"])
        with g.scope("mean"):
            means = g.op("MatMul", weights, g.op("Gather", self.hidden, slots, axis=0))
            flat = g.op("Reshape", means, g.constant(np.array([-1, hidden], np.int64)))
            g.output("mean", g.op("Gather", flat, back, axis=0), "float32", ["pooled", hidden])

    def _pooled(self, cls: Value) -> None:
        """tanh(W h[CLS] + b), and the pair head's two logits on top of it."""
        g, hidden = self.g, self.architecture.hidden
        if not self.parts.has("pooler"):
            self.missing["pooler"] = self.missing["pair"] = "the checkpoint has no pooler weights"
            return
        with g.scope("pooler"):
            pooled = g.op("Tanh", self._dense("pooler", cls, hidden, hidden))
        g.output("pooler", pooled, "float32", ["sequences", hidden])
        self.present.append("pooler")
        if not self.parts.has("pair"):
            self.missing["pair"] = "the checkpoint has no weights of a next-sentence head"
            return
        with g.scope("pair"):
            g.output("pair", self._dense("pair", pooled, hidden, 2), "float32", ["sequences", 2])
        self.present.append("pair")

    def _vocabulary(self, precision: str) -> None:
        """Masked-LM logits at the masks only: the k best, the log of the sum of exponentials over the whole vocabulary, chosen targets."""
        g = self.g
        if not self.parts.has("mlm_dense"):
            self.missing["fill_mask"] = "the checkpoint has no weights of a masked-LM head"
            return
        index = g.input("mask_index", "int32", ["masks"])
        k = g.input("k", "int64", [1])
        pairs = g.input("target_pairs", "int64", ["targets", 2])
        with g.scope("vocabulary"):
            logits = self._logits(g.op("Gather", self.hidden, index, axis=0), precision)
            values, ids = g.ops("TopK", logits, k, outputs=2, axis=-1, largest=1, sorted=1)
            total = g.op("ReduceLogSumExp", logits, g.constant(np.array([-1], np.int64)), keepdims=1)
            targets = g.op("GatherND", logits, pairs)
        g.output("top_logits", values, "float32", ["masks", "k"])
        g.output("top_ids", ids, "int64", ["masks", "k"])
        g.output("log_sum_exp", total, "float32", ["masks", 1])
        g.output("target_logits", targets, "float32", ["targets"])
        self.present.append("fill_mask")

    def _logits(self, rows: Value, precision: str) -> Value:
        """Dense, activation, LayerNorm, then the product with the (usually tied) word embeddings; [masks, vocabulary]."""
        g, a, parts = self.g, self.architecture, self.parts
        dense = g.op("MatMul", rows, g.weight("weight", parts.weight("mlm_dense", (a.embedding, a.hidden)).transposed()))
        inner = activate(g, dense, parts.bias("mlm_dense", a.embedding), self.family.mlm_activation or a.activation)
        gamma = g.weight("norm.weight", parts.weight("mlm_norm", (a.embedding,)))
        beta = g.weight("norm.bias", parts.bias("mlm_norm", a.embedding))
        normed = g.op("LayerNormalization", inner, gamma, beta, axis=-1, epsilon=a.norm_epsilon)
        with g.computing_in(precision):
            logits = g.op("Gemm", g.cast(normed, "float32"), self._decoder(), g.weight("decoder.bias", self._decoder_bias()), transB=1)
        return g.cast(logits, precision)

    def _decoder(self) -> Value:
        """The word embeddings' own value where the decoder is tied to them or not stored; else the stored decoder."""
        shape = (self.architecture.vocabulary, self.architecture.embedding)
        word = self.parts.weight("word", shape)
        if not self.parts.has("mlm_decoder"):
            return self.g.named("embeddings/word")
        decoder = self.parts.weight("mlm_decoder", shape)
        if np.array_equal(decoder.load(), word.load()):
            return self.g.named("embeddings/word")
        return self.g.weight("decoder", decoder)

    def _decoder_bias(self) -> Weight:
        part = "mlm_bias" if self.parts.has("mlm_bias", "bias") else "mlm_decoder"
        return self.parts.bias(part, self.architecture.vocabulary)

    def _dense(self, part: str, x: Value, width: int, out: int) -> Value:
        weight = self.g.weight("weight", self.parts.weight(part, (out, width)))
        return self.g.op("Gemm", x, weight, self.g.weight("bias", self.parts.bias(part, out)), transB=1)
