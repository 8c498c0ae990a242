"""The outputs of the graph: heads over the chosen rows of the last layer."""

from dataclasses import dataclass, field

import numpy as np

from ..artifact.manifest import TOKEN_WEIGHTS
from ..checkpoint import NamedWeights
from ..errors import ExportError
from ..labels import Classifier
from ..lazy_weight import LazyWeight, zeros
from ..sentence import SentenceModel
from .builder import GraphBuilder, Value
from .linear import add_and_activate, multiply, normalized, quantize
from .pooling import build_sentence, build_sparse, build_token_outputs, weighted_sums

CLASSIFIERS = {  # head -> what it is called, and the owners of its logits
    "labels": ("classifier of texts", "sequences"),
    "choices": ("multiple-choice head", "sequences"),
    "tags": ("classifier of tokens", "asked_tokens"),
    "spans": ("question-answering head", "asked_tokens"),
}
SHORTLIST = 64  # words per mask, whatever top_k is: an answer must not change with the top_k of other requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The product that turns rows [masks, width] into logits [masks, vocabulary]."""

    weight: LazyWeight  # [vocabulary, width]
    rows: Value  # the same in the graph
    bias: Value  # [vocabulary]


class ExactLogits:
    """A product for all words, with the word embeddings if the decoder is tied to them."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        """The logits [masks, vocabulary] of the rows `x` [masks, width]."""
        return g.op("Gemm", x, decoder.rows, decoder.bias, transB=1)

    def target_logits(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        """The logits [targets] of the (mask, vocabulary id) `pairs` [targets, 2]."""
        return g.op("GatherND", logits, pairs)


class Int8Shortlist(ExactLogits):
    """int8 for all words, then fp32 for the SHORTLIST best of each mask."""

    def logits(self, g: GraphBuilder, x: Value, decoder: Decoder) -> Value:
        with g.scope("guess"):
            # not ReduceMax: this head also runs without masks, and ONNX Runtime 1.31 reduces no rows to no rows
            largest, _ = g.ops("TopK", g.op("Abs", x), g.int64(1), outputs=2, axis=-1, largest=1, sorted=0)
            guess = g.op("Add", multiply(g, quantize(g, x, largest), decoder.weight), decoder.bias)
            count = g.int64(min(SHORTLIST, decoder.weight.shape[0]))
            _, ids = g.ops("TopK", guess, count, outputs=2, axis=-1, largest=1, sorted=0)
        with g.scope("likely"):
            axis = g.int64(2)
            column = g.op("Unsqueeze", x, axis)
            products = g.op("Squeeze", g.op("MatMul", g.op("Gather", decoder.rows, ids, axis=0), column), axis)
            exact = g.op("Add", products, g.op("Gather", decoder.bias, ids, axis=0))
            return g.op("ScatterElements", guess, ids, exact, axis=1)

    def target_logits(self, g: GraphBuilder, x: Value, decoder: Decoder, logits: Value, pairs: Value) -> Value:  # noqa: ARG002
        """Each pair is its own product of a row and a column, so that it does not depend on the others."""
        with g.scope("targets"):
            masks, ids = (g.op("Gather", pairs, g.constant(np.int64(column)), axis=1) for column in (0, 1))
            row = g.op("Unsqueeze", g.op("Gather", decoder.rows, ids, axis=0), g.int64(1))
            column = g.op("Unsqueeze", g.op("Gather", x, masks, axis=0), g.int64(2))
            products = g.op("Squeeze", g.op("MatMul", row, column), g.int64(1, 2))
            return g.op("Add", products, g.op("Gather", decoder.bias, ids, axis=0))


@dataclass(slots=True)
class Heads:
    """Builds every head that the checkpoint has. Raises ExportError if a head is not complete."""

    g: GraphBuilder
    parts: NamedWeights
    classifier: Classifier
    lm_head: ExactLogits
    hidden: Value  # [selected, hidden]
    sentence: SentenceModel
    tokens: Value = field(init=False)  # of the last layer, [asked tokens, hidden]
    present: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # head -> reason
    assumed: dict[str, str] = field(default_factory=dict)  # setting missing from the checkpoint -> default, and why

    def build(self) -> None:
        """Everything is float32 but the product with the vocabulary, which is large enough to matter."""
        g, dtype, hidden = self.g, self.g.dtype, self.parts.architecture.hidden
        with g.using_dtype("float32"):
            self.hidden = g.cast(self.hidden, dtype)
            cls = g.op("Gather", self.hidden, g.input("cls_index", "int32", ["sequences"]), axis=0)
            g.output("cls", cls, "float32", ["sequences", hidden])
            means = self._build_mean()
            self.tokens = g.op("Gather", self.hidden, g.input("token_index", "int32", ["asked_tokens"]), axis=0)
            g.output("tokens", self.tokens, "float32", ["asked_tokens", hidden])
            self.present += ["cls", "mean", "tokens", "layers"]
            pooled = self._build_pooler(cls)
            self._build_pair(pooled)
            self._build_fill_mask(dtype)
            classified = means if self.parts.classifies_mean else cls
            for name in CLASSIFIERS:
                self._build_classifier(name, classified, pooled)
            if self.sentence.pooling == "sentence":
                build_sentence(g, self.hidden, hidden, self.sentence)
                self.present.append("sentence")
            build_token_outputs(g, self.tokens, self.sentence)
        self.missing |= dict.fromkeys(self.parts.ignored_heads(), "the checkpoint has this head, but no task uses it")
        self.present += self.sentence.of_tokens
        if TOKEN_WEIGHTS in self.sentence.of_tokens and self.missing.pop("sparse", ""):
            self.present.append("sparse")

    def _build_mean(self) -> Value:
        """The mean over all tokens of a sequence, special tokens included: 1 / length times the packed rows."""
        g, hidden = self.g, self.parts.architecture.hidden
        slots = g.input("mean_slots", "int32", ["rows_of_means", "width_of_means"])
        weights = g.input("mean_weights", "float32", ["rows_of_means", "means", "width_of_means"])
        back = g.input("mean_back", "int32", ["pooled"])
        with g.scope("mean"):
            means = weighted_sums(g, self.hidden, slots, weights, back, hidden)
            g.output("mean", means, "float32", ["pooled", hidden])
            return means

    def _build_pooler(self, cls: Value) -> Value | None:
        """tanh(W h[CLS] + b), [sequences, hidden]."""
        hidden = self.parts.architecture.hidden
        if not self._has("pooler", "pooler", "pooler"):
            return None
        with self.g.scope("pooler"):
            pooled = self.g.op("Tanh", self._dense("pooler", cls, hidden, hidden))
        self.g.output("pooler", pooled, "float32", ["sequences", hidden])
        return pooled

    def _build_pair(self, pooled: Value | None) -> None:
        """Two logits from the pooler."""
        if pooled is None and self.parts.knows("pair"):
            self.missing["pair"] = self.missing["pooler"]
        elif self._has("pair", "pair", "sentence-pair head") and pooled:
            with self.g.scope("pair"):
                logits = self._dense("pair", pooled, self.parts.architecture.hidden, 2)
                self.g.output("pair", logits, "float32", ["sequences", 2])

    def _build_fill_mask(self, dtype: str) -> None:
        """At the masks: the k largest logits, the targets' logits, and log(sum(exp)) over the whole vocabulary."""
        g = self.g
        if not self._has("fill_mask", "mlm_dense", "masked-LM head"):
            self.missing["sparse"] = self.missing["fill_mask"]
            return
        index = g.input("mask_index", "int32", ["masks"])
        k = g.input("k", "int64", [1])
        pairs = g.input("target_pairs", "int64", ["targets", 2])
        with g.scope("vocabulary"):
            rows, decoder = self._transform(g.op("Gather", self.hidden, index, axis=0)), self._decoder(dtype)
            with g.using_dtype(dtype):
                x = g.cast(rows, "float32")
                logits = self.lm_head.logits(g, x, decoder)
            logits = g.cast(logits, dtype)
            targets = self.lm_head.target_logits(g, x, decoder, logits, pairs)
            values, ids = g.ops("TopK", logits, k, outputs=2, axis=-1, largest=1, sorted=1)
            # log(sum(exp)) = logit - log(probability) of the best word. A fifth of the time of ReduceLogSumExp, which
            # computes one exponential after the other, and a smaller error
            best = g.int64(0)
            probabilities = g.op("LogSoftmax", logits, axis=-1)
            probability = g.op("GatherElements", probabilities, g.op("Gather", ids, best, axis=1), axis=1)
            total = g.op("Sub", g.op("Gather", values, best, axis=1), probability)
        g.output("top_logits", values, "float32", ["masks", "k"])
        g.output("top_ids", ids, "int64", ["masks", "k"])
        g.output("log_sum_exp", total, "float32", ["masks", 1])
        g.output("target_logits", targets, "float32", ["targets"])
        self._build_sparse(decoder, dtype)

    def _build_classifier(self, name: str, classified: Value, pooled: Value | None) -> None:
        """The logits `name`: a text's labels, a choice's logit, a token's tags, or those of an answer's start and end.

        The softmax over the choices of a prompt is not in the graph.
        """
        words, rows = CLASSIFIERS[name]
        if not self._classifies(name, words):
            return
        count = {"choices": 1, "spans": 2}.get(name, len(self.classifier.names))
        with self.g.scope(name):
            if rows == "asked_tokens":  # in some families read as a text is
                known = self.parts.knows("classifier_norm")
                states = self._classified(self.tokens, None, "labels_dense") if known else self.tokens
            else:
                states = self._classified(classified, pooled, f"{name}_dense")
            logits = self._dense(name, states, self.parts.architecture.hidden, count)
            if rows == "sequences" and self.parts.classifies_mean:
                name, rows = f"mean_{name}", "pooled"
            self.g.output(name, logits, "float32", [rows, count])

    def _classifies(self, output: str, name: str) -> bool:
        """Whether the checkpoint's classifier gives `output`; records it as present or missing."""
        heads = self.parts.family.heads
        if output == "spans" and heads.get("spans") != heads.get("labels"):  # its name tells it from a classifier
            return self._has("spans", "spans", name)
        if self.classifier.output == output:
            self.present.append(output)
            return True
        self.missing[output] = f"the checkpoint has no {name}"
        return False

    def _classified(self, states: Value, pooled: Value | None, part: str) -> Value:
        """What a classifier reads: the dense layer `part` over `states`, or the pooler in a family without it."""
        if activation := self.parts.family.activations.get(part):
            return self._inner("dense", part, "classifier_norm", states, self.parts.architecture.hidden, activation)
        if pooled is None:
            raise ExportError("the checkpoint classifies texts by their pooler output, but has no pooler weights")
        return pooled

    def _has(self, head: str, part: str, name: str) -> bool:
        """Whether the checkpoint has `head`, whose first weight is `part`; records it as present or missing."""
        if self.parts.has(part):
            self.present.append(head)
            return True
        family = f"family {self.parts.architecture.family} has no"
        fault = "the checkpoint has no weights of a" if self.parts.knows(part) else family
        self.missing[head] = f"{fault} {name}"
        return False

    def _transform(self, rows: Value) -> Value:
        """What the product with the vocabulary reads: [rows, hidden] to [rows, width]."""
        a = self.parts.architecture
        activation = self.parts.family.activations.get("mlm_dense", a.activation)
        return self._inner("weight", "mlm_dense", "mlm_norm", rows, a.embedding, activation)

    def _inner(self, name: str, part: str, norm: str, x: Value, width: int, activation: str) -> Value:
        """The dense layer `part`, its activation and, if the family has it, `norm`: [rows, hidden] to [rows, width].

        `name` is the weight's in the graph.
        """
        g, parts = self.g, self.parts
        weight, bias = parts.dense(part, width, parts.architecture.hidden)
        product = g.op("MatMul", x, g.weight(name, weight.transposed()))
        inner = add_and_activate(g, product, bias, activation)
        return normalized(g, parts, norm, inner, width) if parts.knows(norm) else inner

    def _build_sparse(self, decoder: Decoder, dtype: str) -> None:
        """The largest logit of each word over all tokens of a text; its product is not rounded to int8."""
        g = self.g

        def product(rows: Value) -> Value:
            states = self._transform(g.op("Gather", self.hidden, rows, axis=0))
            with g.using_dtype(dtype):
                columns = g.op("Transpose", g.cast(states, "float32"), perm=[1, 0])
            return g.cast(g.op("MatMul", decoder.rows, columns), dtype)

        bias = g.weight("decoder.bias", self._decoder_bias())
        build_sparse(g, product, bias)
        if self.sentence.sparse:
            self.present.append("sparse")
        else:
            self.missing["sparse"] = "the checkpoint was not trained for sparse vectors"

    def _decoder(self, dtype: str) -> Decoder:
        """The word embeddings if the decoder is tied to them or not stored; else the stored decoder."""
        parts, a = self.parts, self.parts.architecture
        stored = parts.has("mlm_decoder")
        if parts.is_untied and not stored:
            found = "config.json sets tie_word_embeddings to False, but the checkpoint has no decoder"
            raise ExportError(f"{found}: its masked-LM head is not complete")
        word = weight = parts.weight("word", (a.vocabulary, a.embedding))
        if stored:
            decoder = parts.weight("mlm_decoder", (a.vocabulary, a.embedding))
            weight = word if np.array_equal(decoder.load(), word.load()) else decoder
        with self.g.using_dtype(dtype):
            rows = self.g.weight("decoder", weight)  # that of the embeddings if it is tied
            return Decoder(weight=weight, rows=rows, bias=self.g.weight("decoder.bias", self._decoder_bias()))

    def _decoder_bias(self) -> LazyWeight:
        vocabulary = self.parts.architecture.vocabulary
        for part in ("mlm_decoder", "mlm_bias"):  # if the two differ, transformers uses the decoder's own
            if self.parts.has(part, "bias"):
                return self.parts.bias(part, vocabulary)
        self.assumed["masked-LM bias"] = "zero, the initial value in transformers: the checkpoint has none"
        return zeros((vocabulary,))

    def _dense(self, part: str, x: Value, width: int, out: int) -> Value:
        weight, bias = self.parts.dense(part, out, width)
        return self.g.op("Gemm", x, self.g.weight("weight", weight), self.g.weight("bias", bias), transB=1)
