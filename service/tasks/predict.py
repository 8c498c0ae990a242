"""/predict: the labels of a fine-tuned classifier for texts or pairs, as text-embeddings-inference gives them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import Pair, PredictRequest
from service.tokenization.encoding import EncodeOptions, Text

OPTIONS = EncodeOptions(outputs=frozenset({"labels"}))
Floats = NDArray[np.float64]


async def predict(tasks: Tasks, request: PredictRequest, *, timeout_seconds: float) -> TaskResult:
    """Every label with its score, best first: a list for one text or pair, a list of lists for a batch."""
    tasks.require_head("labels")
    texts, single = _texts(request.inputs)
    result = await tasks.run(texts, request, OPTIONS, timeout_seconds=timeout_seconds)
    score = SCORE_FUNCTIONS["none" if request.raw_scores else tasks.manifest.label_scores]
    ranked = [_rank(tasks.manifest.labels, score(row["labels"][0].astype(np.float64))) for row in result.rows]
    return result.finish(ranked[0] if single else ranked)


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))  # never overflows


SCORE_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {"softmax": softmax, "sigmoid": sigmoid, "none": lambda x: x}


def _texts(inputs: str | Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The texts or pairs, and whether they are a single input. A list of two strings is one pair, as in TEI."""
    if isinstance(inputs, str | Pair):
        return [_text(inputs, 0)], True
    strings = [one for one in inputs if isinstance(one, str)]
    if not inputs or len(strings) < len(inputs):
        return [_text(one, index) for index, one in enumerate(inputs)], False
    if len(strings) > 2:
        example = '["a", "b"] is one pair, [["a"], ["b"], ["c"]] are three texts'
        raise Invalid(f"inputs is a list of {len(strings)} strings; {example}", code="pair")
    return [_text(strings, 0)], True


def _text(one: str | Pair | list[str], index: int) -> Text:
    if isinstance(one, str):
        return one
    if isinstance(one, Pair):
        return one.text, one.text_pair
    if len(one) == 1:
        return one[0]
    if len(one) == 2:
        return one[0], one[1]
    raise Invalid(f"an input is a text or a pair, this one has {len(one)} texts", code="pair", index=index)


def _rank(labels: Sequence[str], scores: Floats) -> list[dict[str, Any]]:
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"label": labels[i], "score": float(scores[i])} for i in order]
