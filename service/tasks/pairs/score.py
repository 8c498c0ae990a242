"""Scores of texts and pairs as numbers alone: a classifier's labels, a cross-encoder's score, the cosine of vectors."""

from collections.abc import Sequence

import numpy as np

from service.errors import Invalid, ServiceError
from service.tasks.base import TaskResult, Tasks
from service.tasks.labels.predict import OPTIONS, SCORE_FUNCTIONS, sigmoid
from service.tasks.pairs.rerank import is_cross_encoder, require_cosine
from service.tasks.schemas import EmbeddingFields, TruncationFields
from service.tasks.vectors.embed import embed_texts
from service.tokenization.encoding import Text


async def score_labels(
    tasks: Tasks, texts: Sequence[Text], request: TruncationFields, *, raw: bool, timeout_seconds: float
) -> TaskResult:
    """[texts, labels] float64, in the order of the manifest's labels; logits if `raw`."""
    tasks.require_head("labels")
    result = await tasks.run(texts, request, OPTIONS, timeout_seconds=timeout_seconds)
    score = SCORE_FUNCTIONS["none" if raw else tasks.manifest.label_scores]
    return result.finish(score(np.concatenate([row["labels"] for row in result.rows]).astype(np.float64)))


async def score_pairs(
    tasks: Tasks,
    first: Sequence[str],
    second: Sequence[str],
    request: TruncationFields,
    *,
    raw: bool,
    timeout_seconds: float,
) -> TaskResult:
    """[second] float64: how well each text of `second` fits the text of `first` at its place, or the only one.

    As in /rerank: a cross-encoder's score is the sigmoid of its logit, or the logit if `raw`; another model's is the
    cosine of the vectors that /embed gives. Raises NoSuchHead for another model without BERT_RERANK=cosine.
    """
    if len(first) not in (1, len(second)) or not second:
        counts = f"{len(first)} first and {len(second)} second texts"
        raise Invalid(f"{counts}: send at least one second text, and one first text or as many", code="pair")
    if not is_cross_encoder(tasks.manifest):
        require_cosine(tasks)
        tasks.check_count(second)
        tasks = tasks.allowing(len(first) + len(second))
        return await _score_cosines(tasks, first, second, request, timeout_seconds=timeout_seconds)
    pairs = list(zip([*first] * len(second) if len(first) == 1 else first, second, strict=True))
    result = await score_labels(tasks, pairs, request, raw=True, timeout_seconds=timeout_seconds)
    logits = result.value[:, 0]
    return result.finish(logits if raw else sigmoid(logits))


async def _score_cosines(
    tasks: Tasks, first: Sequence[str], second: Sequence[str], request: TruncationFields, *, timeout_seconds: float
) -> TaskResult:
    """As `score_pairs`. The index of an error is that of the text in `first` or in `second`, which it names."""
    truncation = {name: getattr(request, name) for name in TruncationFields.model_fields}
    fields = EmbeddingFields.model_validate(truncation | {"normalize": True})
    try:
        result = await embed_texts(tasks, [*first, *second], fields, timeout_seconds=timeout_seconds)
    except ServiceError as error:
        if error.index is not None:
            side = "first" if error.index < len(first) else "second"
            error.message = f"a {side} text: {error.message}"
            error.index -= len(first) if side == "second" else 0
        raise
    vectors = result.value.astype(np.float64)
    return result.finish(np.clip((vectors[: len(first)] * vectors[len(first) :]).sum(axis=-1), -1.0, 1.0))
