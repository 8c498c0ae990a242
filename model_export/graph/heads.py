"""What is read off the hidden states: each head takes the chosen rows [chosen, hidden] and names its outputs.

A head whose weights are missing is left out of the graph; `missing` says so. Nothing is ever filled with random weights.
"""

from dataclasses import dataclass, field

import numpy as np

from model_export.checkpoints.architecture import Architecture
from model_export.checkpoints.class_labels import Classifier
from model_export.checkpoints.families import Family, NamedWeights
from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.errors import ExportError
from model_export.graph.builder import GraphBuilder, Value
from model_export.graph.linear import activate
from model_export.graph.lm_head import Decoder, Scores


@dataclass(slots=True)
class Heads:
    g: GraphBuilder
    architecture: Architecture
    family: Family
    parts: NamedWeights
    classifier: Classifier
    scores: Scores
    hidden: Value  # [chosen, hidden]
    present: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

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
        pooled = self._pooled(cls)
        self._pair(pooled)
        self._vocabulary(precision)
        self._labels(cls, pooled)
        self._tags()
        self.missing |= dict.fromkeys(self.parts.unserved(), "the checkpoint has this head, but no task reads it")

    def _mean(self) -> None:
        """The mean over all tokens of a sequence, special tokens included, as the product of 1 / length with the packed rows.

        Not ScatterND with reduction "add": ONNX Runtime 1.31 runs it on several threads that race for the same row.
        """
        g, hidden = self.g, self.architecture.hidden
        slots = g.input("mean_slots", "int32", ["rows_of_means", "width_of_means"])
        weights = g.input("mean_weights", "float32", ["rows_of_means", "means", "width_of_means"])
        back = g.input("mean_back", "int32", ["pooled"])
        with g.scope("mean"):
            # the hidden states first and turned over: threads then share out channels, and not what a mean is added up in
            means = g.contrib("FusedMatMul", g.op("Gather", self.hidden, slots, axis=0), weights, transA=1, transB=1)
            flat = g.op(
                "Reshape", g.op("Transpose", means, perm=[0, 2, 1]), g.constant(np.array([-1, hidden], np.int64))
            )
            g.output("mean", g.op("Gather", flat, back, axis=0), "float32", ["pooled", hidden])

    def _pooled(self, cls: Value) -> Value | None:
        """tanh(W h[CLS] + b)."""
        g, hidden = self.g, self.architecture.hidden
        if not self._has("pooler", "pooler", "weights of a pooler"):
            return None
        with g.scope("pooler"):
            pooled = g.op("Tanh", self._dense("pooler", cls, hidden, hidden))
        g.output("pooler", pooled, "float32", ["sequences", hidden])
        return pooled

    def _pair(self, pooled: Value | None) -> None:
        """Two logits on top of the pooler."""
        if pooled is None:
            self.missing["pair"] = self.missing["pooler"] if self.family.pair else self._none("sentence-pair head")
            return
        if self._has("pair", "pair", "weights of a sentence-pair head"):
            with self.g.scope("pair"):
                self.g.output(
                    "pair", self._dense("pair", pooled, self.architecture.hidden, 2), "float32", ["sequences", 2]
                )

    def _vocabulary(self, precision: str) -> None:
        """Masked-LM logits at the masks only: the k best, the log of the sum of exponentials over the whole vocabulary, chosen targets."""
        g = self.g
        if not self._has("fill_mask", "mlm_dense", "weights of a masked-LM head"):
            return
        index = g.input("mask_index", "int32", ["masks"])
        k = g.input("k", "int64", [1])
        pairs = g.input("target_pairs", "int64", ["targets", 2])
        with g.scope("vocabulary"):
            logits, targets = self._logits(g.op("Gather", self.hidden, index, axis=0), pairs, precision)
            values, ids = g.ops("TopK", logits, k, outputs=2, axis=-1, largest=1, sorted=1)
            # a fifth of ReduceLogSumExp's time, which takes one exponential after the other, and less of an error
            best = g.constant(np.array([0], np.int64))
            share = g.op(
                "GatherElements", g.op("LogSoftmax", logits, axis=-1), g.op("Gather", ids, best, axis=1), axis=1
            )
            total = g.op("Sub", g.op("Gather", values, best, axis=1), share)
        g.output("top_logits", values, "float32", ["masks", "k"])
        g.output("top_ids", ids, "int64", ["masks", "k"])
        g.output("log_sum_exp", total, "float32", ["masks", 1])
        g.output("target_logits", targets, "float32", ["targets"])

    def _labels(self, cls: Value, pooled: Value | None) -> None:
        """A text's logits: from [CLS] through a dense layer of their own where the family has one, else from the pooler."""
        g, hidden, names = self.g, self.architecture.hidden, self.classifier.names
        if self.classifier.output != "labels":
            self.missing["labels"] = "the checkpoint has no classifier of texts"
            return
        self.present.append("labels")
        with g.scope("labels"):
            inner = pooled
            if self.family.labels_activation:
                dense = g.op(
                    "MatMul", cls, g.weight("dense", self.parts.weight("labels_dense", (hidden, hidden)).transposed())
                )
                inner = activate(g, dense, self.parts.bias("labels_dense", hidden), self.family.labels_activation)
            if inner is None:
                raise ExportError("the checkpoint classifies texts by their pooler output, but has no pooler weights")
            g.output("labels", self._dense("labels", inner, hidden, len(names)), "float32", ["sequences", len(names)])

    def _tags(self) -> None:
        """Every token's logits."""
        g, hidden, names = self.g, self.architecture.hidden, self.classifier.names
        if self.classifier.output != "tags":
            self.missing["tags"] = "the checkpoint has no classifier of tokens"
            return
        self.present.append("tags")
        with g.scope("tags"):
            tokens = g.op("Gather", self.hidden, g.input("token_index", "int32", ["tagged"]), axis=0)
            g.output("tags", self._dense("tags", tokens, hidden, len(names)), "float32", ["tagged", len(names)])

    def _has(self, head: str, part: str, what: str) -> bool:
        """Whether the checkpoint has `head`, which begins with `part`; notes it as present or missing."""
        if self.parts.has(part):
            self.present.append(head)
            return True
        known = part in self.family.parts or part in self.family.heads
        self.missing[head] = (
            f"the checkpoint has no {what}" if known else self._none(what.removeprefix("weights of a "))
        )
        return False

    def _none(self, what: str) -> str:
        return f"family {self.architecture.family} has no {what}"

    def _logits(self, rows: Value, pairs: Value, precision: str) -> tuple[Value, Value]:
        """Dense, activation, LayerNorm, then the product with the (usually tied) word embeddings: [masks, vocabulary], and of the pairs [targets]."""
        g, a, parts = self.g, self.architecture, self.parts
        dense = g.op(
            "MatMul", rows, g.weight("weight", parts.weight("mlm_dense", (a.embedding, a.hidden)).transposed())
        )
        inner = activate(g, dense, parts.bias("mlm_dense", a.embedding), self.family.mlm_activation or a.activation)
        gamma = g.weight("norm.weight", parts.weight("mlm_norm", (a.embedding,)))
        beta = g.weight("norm.bias", parts.bias("mlm_norm", a.embedding))
        normed = g.op("LayerNormalization", inner, gamma, beta, axis=-1, epsilon=a.norm_epsilon)
        with g.computing_in(precision):
            x, decoder = g.cast(normed, "float32"), self._decoder()
            logits = self.scores.logits(g, x, decoder)
        logits = g.cast(logits, precision)
        return logits, self.scores.selected(g, x, decoder, logits, pairs)

    def _decoder(self) -> Decoder:
        """The word embeddings' own value where the decoder is tied to them or not stored; else the stored decoder."""
        if self.parts.untied and not self.parts.has("mlm_decoder"):
            raise ExportError(
                "config.json sets tie_word_embeddings to False, but the checkpoint has no decoder: its masked-LM head is not complete"
            )
        shape = (self.architecture.vocabulary, self.architecture.embedding)
        weight = word = self.parts.weight("word", shape)
        if self.parts.has("mlm_decoder") and not np.array_equal(
            (stored := self.parts.weight("mlm_decoder", shape)).load(), word.load()
        ):
            weight = stored
        rows = self.g.named("embeddings/word") if weight is word else self.g.weight("decoder", weight)
        return Decoder(weight=weight, rows=rows, bias=self.g.weight("decoder.bias", self._decoder_bias()))

    def _decoder_bias(self) -> LazyWeight:
        for part in (
            "mlm_decoder",
            "mlm_bias",
        ):  # the decoder's own first: where the two differ, transformers adds that one
            if self.parts.has(part, "bias"):
                return self.parts.bias(part, self.architecture.vocabulary)
        self.assumed["masked-LM bias"] = "zero, which transformers starts it with: the checkpoint has none"
        return LazyWeight((self.architecture.vocabulary,), lambda: np.zeros(self.architecture.vocabulary, np.float32))

    def _dense(self, part: str, x: Value, width: int, out: int) -> Value:
        weight = self.g.weight("weight", self.parts.weight(part, (out, width)))
        return self.g.op("Gemm", x, weight, self.g.weight("bias", self.parts.bias(part, out)), transB=1)
