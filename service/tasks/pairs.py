"""Scores of pairs: next sentence, relevance, reranking."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifact import Manifest
from ..errors import Invalid, NoSuchHead, ServiceError
from ..tokenization.encoding import EncodeOptions, Text
from ..turns import in_turns
from .embed import locate_behind, similarities
from .flow import Task, TaskResult, Tasks
from .inputs import NspRequest, Pair, RerankFields, TruncationFields, as_text
from .max_sim import score_by_tokens
from .predict import OPTIONS, SCORE_FUNCTIONS

NSP_OPTIONS = EncodeOptions(outputs=frozenset({"pair"}))
Floats = NDArray[Any]


async def score_labels(tasks: Tasks, texts: Sequence[Text], request: TruncationFields, *, raw: bool) -> Task:
    """[texts, labels] float64, in the order of the manifest's labels; logits if `raw`."""
    tasks.require_head("labels")
    score = SCORE_FUNCTIONS["none" if raw else tasks.manifest.label_scores]

    async def answer(result: TaskResult) -> Floats:
        scores = score(np.concatenate([row["labels"] for row in result.rows]).astype(np.float64))
        result.compared = [tasks.manifest.labels[best] for best in scores.argmax(axis=-1).tolist()]
        return scores

    return Task(partial(tasks.chunks, texts, request, OPTIONS), answer)


async def score_pairs(
    tasks: Tasks, first: Sequence[str], second: Sequence[str], request: TruncationFields, *, raw: bool
) -> Task:
    """[second] float64: how well each text of `second` fits the text of `first` at its place, or its only text.

    A cross-encoder's score is what its checkpoint makes of the logit, by default the sigmoid, or the logit if `raw`.
    The score of ColBERT and BGE-M3 is MaxSim; that of another model is the similarity of the vectors that /embed gives.
    Raises NoSuchHead for another model without BERT_RERANK=cosine.
    """
    if len(first) not in (1, len(second)) or not second:
        counts = f"{len(first)} first and {len(second)} second texts"
        raise Invalid(f"{counts}: send at least one second text, and one first text or as many", code="pair")
    return await _score_texts(tasks, first, second, request, partial(_locate_side, len(first)), raw=raw)


async def rerank(tasks: Tasks, request: RerankFields, texts: Sequence[str]) -> Task:
    """[texts] scores, higher is better, in the order of the texts; raw scores if the request says so.

    Scores and raises as `score_pairs` with the query and each text.
    """
    locate = partial(locate_behind, "query", 1)
    return await _score_texts(tasks, [request.query], texts, request, locate, raw=request.raw_scores)


async def _score_texts(
    tasks: Tasks,
    first: Sequence[str],
    second: Sequence[str],
    request: TruncationFields,
    locate: Callable[[ServiceError], None],
    *,
    raw: bool,
) -> Task:
    """[second] float64; the rest as in `score_pairs`, and `locate` as in `Task`, for vectors."""
    if tasks.scorer == "maxsim":
        return await score_by_tokens(tasks, first, second, request)
    if tasks.scorer == "cosine":
        return (await similarities(tasks, first, second, request))._replace(locate=locate, accepts_empty=True)
    if tasks.scorer is None:
        raise _no_scorer(tasks.manifest)
    score = SCORE_FUNCTIONS["none" if raw else tasks.manifest.relevance_scores]
    pairs = list(zip([*first] * len(second) if len(first) == 1 else first, second, strict=True))
    task = await score_labels(tasks, pairs, request, raw=True)

    def show(logits: Floats, result: TaskResult) -> Floats:
        result.compared = ()
        return score(logits[:, 0])

    return task.then(show, accepts_empty=True)


def _locate_side(count: int, error: ServiceError) -> None:
    """For a request whose first `count` texts are the first texts of its pairs."""
    if error.index is not None:
        side = "first" if error.index < count else "second"
        error.message = f"a {side} text: {error.message}"
        error.index -= count if side == "second" else 0


async def nsp(tasks: Tasks, request: NspRequest) -> Task:
    """Whether the second text follows the first. The softmax of two logits, under the labels that the head learned."""
    pairs, single = _pairs(request.inputs)

    async def answer(result: TaskResult) -> Any:
        scores = [_score(row["pair"][0], tasks.manifest.pair_labels) async for row in in_turns(result.rows)]
        return scores[0] if single else scores

    return Task(partial(tasks.chunks, pairs, request, NSP_OPTIONS), answer)


def _pairs(inputs: Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The pairs, and whether they are a single input. A list of two strings is a pair, as in /predict."""
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


def _no_scorer(manifest: Manifest) -> NoSuchHead:
    if "labels" in manifest.heads:
        labels = ", ".join(manifest.labels[:2])
        why = f"this classifier has {len(manifest.labels)} ({labels}, ...): /predict scores pairs with them"
    else:
        why = "this model has no classifier of texts: BERT_RERANK=cosine ranks by the cosine of vectors"
    return NoSuchHead(f"reranking needs a cross-encoder, a text classifier with one label; {why}")
