"""Scores of pairs: next sentence, relevance, reranking."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.service.errors import Invalid, NoSuchHead, ServiceError
from packbert.service.tasks.base import TaskResult, Tasks
from packbert.service.tasks.defaults import is_cross_encoder, scorer
from packbert.service.tasks.embed import compare, embed_texts, similarities, similarity_fields
from packbert.service.tasks.inputs import EmbeddingFields, NspRequest, Pair, RerankFields, TruncationFields, as_text
from packbert.service.tasks.max_sim import score_by_tokens
from packbert.service.tasks.predict import OPTIONS, SCORE_FUNCTIONS
from packbert.service.tokenization.encoding import EncodeOptions, Text
from packbert.service.turns import in_turns


async def score_labels(tasks: Tasks, texts: Sequence[Text], request: TruncationFields, *, raw: bool) -> TaskResult:
    """[texts, labels] float64, in the order of the manifest's labels; logits if `raw`."""
    tasks.require_head("labels")
    result = await tasks.run(texts, request, OPTIONS)
    score = SCORE_FUNCTIONS["none" if raw else tasks.manifest.label_scores]
    scores = score(np.concatenate([row["labels"] for row in result.rows]).astype(np.float64))
    result.compared = [tasks.manifest.labels[best] for best in scores.argmax(axis=-1).tolist()]
    return result.finish(scores)


async def score_pairs(
    tasks: Tasks, first: Sequence[str], second: Sequence[str], request: TruncationFields, *, raw: bool
) -> TaskResult:
    """[second] float64: how well each text of `second` fits the text of `first` at its place, or the only one.

    As in /rerank: a cross-encoder's score is its activation's of the logit, or the logit if `raw`; that of ColBERT
    and BGE-M3 is MaxSim; another model's is the similarity of the vectors that /embed gives. Raises NoSuchHead for
    another model without BERT_RERANK=cosine.
    """
    if len(first) not in (1, len(second)) or not second:
        counts = f"{len(first)} first and {len(second)} second texts"
        raise Invalid(f"{counts}: send at least one second text, and one first text or as many", code="pair")
    if scorer(tasks.manifest, by_cosine=tasks.rerank_by_cosine) == "maxsim":
        return await score_by_tokens(tasks, first, second, request)
    if not is_cross_encoder(tasks.manifest):
        require_cosine(tasks)
        tasks.check_count(second)
        tasks = tasks.allowing(len(first) + len(second))
        return await _score_cosines(tasks, first, second, request)
    pairs = list(zip([*first] * len(second) if len(first) == 1 else first, second, strict=True))
    return await _score_relevance(tasks, pairs, request, raw=raw)


async def _score_relevance(tasks: Tasks, pairs: Sequence[Text], request: TruncationFields, *, raw: bool) -> TaskResult:
    """[pairs] float64 by a cross-encoder."""
    result = await score_labels(tasks, pairs, request, raw=True)
    logits, result.compared = result.value[:, 0], ()
    return result.finish(logits if raw else SCORE_FUNCTIONS[tasks.manifest.relevance_scores](logits))


async def _score_cosines(
    tasks: Tasks, first: Sequence[str], second: Sequence[str], request: TruncationFields
) -> TaskResult:
    """As `score_pairs`. The index of an error is that of the text in `first` or in `second`, which it names."""
    fields = EmbeddingFields.model_validate(request.how_texts_are_read() | similarity_fields(tasks.manifest))
    try:
        result = await embed_texts(tasks, [*first, *second], fields)
    except ServiceError as error:
        if error.index is not None:
            side = "first" if error.index < len(first) else "second"
            error.message = f"a {side} text: {error.message}"
            error.index -= len(first) if side == "second" else 0
        raise
    vectors = result.value.astype(np.float64)
    found = compare(tasks.manifest, vectors[: len(first)], vectors[len(first) :])
    return result.finish(found.astype(np.float32))  # as `similarities` gives them


NSP_OPTIONS = EncodeOptions(outputs=frozenset({"pair"}))


async def nsp(tasks: Tasks, request: NspRequest) -> TaskResult:
    """The softmax of the pair head's two logits, under the labels that the head was trained on."""
    pairs, single = _pairs(request.inputs)
    result = await tasks.run(pairs, request, NSP_OPTIONS)
    scores = [_score(row["pair"][0], tasks.manifest.pair_labels) async for row in in_turns(result.rows)]
    return result.finish(scores[0] if single else scores)


def _pairs(inputs: Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The pairs, and whether they are a single input. A list of two strings is one pair, as in /predict."""
    if isinstance(inputs, Pair):
        return [as_text(inputs, 0)], True
    strings = [one for one in inputs if isinstance(one, str)]
    if not strings:
        return [as_text(one, index) for index, one in enumerate(inputs)], False
    if len(strings) == len(inputs) == 2:
        return [as_text(strings, 0)], True
    example = '["a", "b"] is one pair, [["a", "b"], ["c", "d"]] are two pairs'
    raise Invalid(f"inputs is a list of {len(inputs)} with {len(strings)} single strings; {example}", code="pair")


def _score(logits: NDArray[np.generic], labels: Sequence[str]) -> dict[str, Any]:
    first, second = labels
    difference = float(logits[1]) - float(logits[0])
    probability = 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0  # exp overflows from 710 on
    return {"label": first if probability >= 0.5 else second, first: probability, second: 1.0 - probability}


async def rerank(tasks: Tasks, request: RerankFields, texts: Sequence[str]) -> TaskResult:
    """[texts] scores, higher is better, in the order of the texts.

    A cross-encoder reads each pair (query, text): its score is what its checkpoint makes of the logit, by default the
    sigmoid, or the logit itself (float64). ColBERT and BGE-M3 score by MaxSim. Raises NoSuchHead for another
    model without BERT_RERANK=cosine.
    """
    if scorer(tasks.manifest, by_cosine=tasks.rerank_by_cosine) == "maxsim":
        return await score_by_tokens(tasks, [request.query], texts, request)
    if not is_cross_encoder(tasks.manifest):
        require_cosine(tasks)
        return await similarities(tasks, request.query, texts, request, name="query")
    pairs = [(request.query, text) for text in texts]
    return await _score_relevance(tasks, pairs, request, raw=request.raw_scores)


def require_cosine(tasks: Tasks) -> None:
    """Raises NoSuchHead without BERT_RERANK=cosine, for a model that is no cross-encoder."""
    if tasks.rerank_by_cosine:
        return
    if "labels" in tasks.manifest.heads:
        labels = ", ".join(tasks.manifest.labels[:2])
        why = f"this classifier has {len(tasks.manifest.labels)} ({labels}, ...): /predict scores pairs with them"
    else:
        why = "this model has no classifier of texts: BERT_RERANK=cosine ranks by the cosine of vectors"
    raise NoSuchHead(f"reranking needs a cross-encoder, a text classifier with one label; {why}")
