"""The forward pass of the paper in NumPy, float64, one sequence at a time: what the written artifact is checked against.

Shares no code with the graph. Devlin et al. 2018; Vaswani et al. 2017 for attention and post-norm; Hendrycks & Gimpel 2016 for GELU.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from model_export.architecture import Architecture
from model_export.families import Family, Parts

Doubles = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Doubles) -> Doubles:
    return np.asarray(0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))))


def gelu_tanh(x: Doubles) -> Doubles:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: Doubles) -> Doubles:
    return np.maximum(x, 0.0)


ACTIVATIONS: dict[str, Callable[[Doubles], Doubles]] = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "tanh": np.tanh}


class Reference:
    """Hidden states and head outputs of a checkpoint, each layer's weights in memory only while it is computed."""

    def __init__(self, architecture: Architecture, family: Family, parts: Parts) -> None:
        self._a = architecture
        self._family = family
        self._parts = parts

    def hidden_states(self, sequences: Sequence[NDArray[np.int32]]) -> list[Doubles]:
        """The last layer's output for each sequence of ids, all in segment 0; each [length, hidden]."""
        states = [self._embed(ids) for ids in sequences]
        for layer in range(self._a.layers):
            weights = self._layer_weights(layer)
            states = [self._layer(x, weights) for x in states]
        return states

    def pooler(self, hidden: Doubles) -> Doubles:
        """tanh(W h[CLS] + b), [hidden]."""
        return np.asarray(np.tanh(self._dense("pooler", hidden[0], self._a.hidden, self._a.hidden)))

    def pair(self, hidden: Doubles) -> Doubles:
        return self._dense("pair", self.pooler(hidden), self._a.hidden, 2)

    def labels(self, hidden: Doubles, count: int) -> Doubles:
        """A text's logits, [count]."""
        activation, width = self._family.labels_activation, self._a.hidden
        inner = ACTIVATIONS[activation](self._dense("labels_dense", hidden[0], width, width)) if activation else self.pooler(hidden)
        return self._dense("labels", inner, width, count)

    def tags(self, hidden: Doubles, count: int) -> Doubles:
        """Every token's logits, [length, count]."""
        return self._dense("tags", hidden, self._a.hidden, count)

    def vocabulary(self, rows: Doubles) -> Doubles:
        """Log-probabilities over the vocabulary, [rows, vocabulary]."""
        a = self._a
        inner = self._dense("mlm_dense", rows, a.hidden, a.embedding)
        inner = ACTIVATIONS[self._family.mlm_activation or a.activation](inner)
        inner = self._norm(inner, *(self._vector("mlm_norm", kind, a.embedding) for kind in ("weight", "bias")))
        part = "mlm_decoder" if self._parts.has("mlm_decoder") else "word"
        logits = inner @ self._matrix(part, a.vocabulary, a.embedding).T
        logits += self._vector("mlm_bias" if self._parts.has("mlm_bias", "bias") else "mlm_decoder", "bias", a.vocabulary)
        logits -= logits.max(axis=-1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))

    def _embed(self, ids: NDArray[np.int32]) -> Doubles:
        a = self._a
        word = self._parts.weight("word", (a.vocabulary, a.embedding)).load()[ids]
        position = self._parts.weight("position", (a.position_offset + a.positions, a.embedding)).load()
        total = word.astype(np.float64) + position[a.position_offset : a.position_offset + len(ids)]
        for part, rows in (("segment", a.segments), ("task_type", a.task_types)):
            if rows:
                total += self._parts.weight(part, (rows, a.embedding)).load()[0]
        total = self._norm(total, *(self._vector("embedding_norm", kind, a.embedding) for kind in ("weight", "bias")))
        if a.embedding == a.hidden and not self._parts.has("projection"):
            return total
        return self._dense("projection", total, a.embedding, a.hidden)

    def _layer_weights(self, layer: int) -> dict[str, Doubles]:
        a = self._a
        shapes = dict.fromkeys(("query", "key", "value", "attention"), (a.hidden, a.hidden))
        shapes |= {"intermediate": (a.intermediate, a.hidden), "output": (a.hidden, a.intermediate)}
        weights = {part: self._parts.weight(part, shape, layer=layer).load().astype(np.float64) for part, shape in shapes.items()}
        weights |= {f"{part}.bias": self._vector(part, "bias", shape[0], layer) for part, shape in shapes.items()}
        for norm in ("attention_norm", "output_norm"):
            weights |= {f"{norm}.{kind}": self._vector(norm, kind, a.hidden, layer) for kind in ("weight", "bias")}
        return weights

    def _layer(self, x: Doubles, w: dict[str, Doubles]) -> Doubles:
        query, key, value = (self._heads(x @ w[part].T + w[f"{part}.bias"]) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(self._a.head_size)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        context = context.transpose(1, 0, 2).reshape(x.shape) @ w["attention"].T + w["attention.bias"]
        x = self._norm(x + context, w["attention_norm.weight"], w["attention_norm.bias"])
        inner = ACTIVATIONS[self._a.activation](x @ w["intermediate"].T + w["intermediate.bias"])
        return self._norm(x + inner @ w["output"].T + w["output.bias"], w["output_norm.weight"], w["output_norm.bias"])

    def _heads(self, x: Doubles) -> Doubles:
        """[length, hidden] -> [heads, length, head size]."""
        return x.reshape(len(x), self._a.heads, self._a.head_size).transpose(1, 0, 2)

    def _norm(self, x: Doubles, weight: Doubles, bias: Doubles) -> Doubles:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + self._a.norm_epsilon) * weight + bias)

    def _dense(self, part: str, x: Doubles, width: int, out: int) -> Doubles:
        return np.asarray(x @ self._matrix(part, out, width).T + self._vector(part, "bias", out))

    def _matrix(self, part: str, rows: int, columns: int) -> Doubles:
        return self._parts.weight(part, (rows, columns)).load().astype(np.float64)

    def _vector(self, part: str, kind: str, size: int, layer: int = 0) -> Doubles:
        read = self._parts.bias(part, size, layer=layer) if kind == "bias" else self._parts.weight(part, (size,), layer=layer)
        return read.load().astype(np.float64)
