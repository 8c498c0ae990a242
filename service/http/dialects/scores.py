"""The routes of scores of other servers: /rerank, /v1/ranking, /classify and /score.

/rerank is text-embeddings-inference's by `texts`, and all others' by `documents`. Cohere, Jina, Voyage, infinity and
vLLM share paths and fields, but not the form of `document` in the response: an object, or a string. Their clients send
`return_documents: true` unasked and fail on the other form, and all of them do without. So `true` adds no document; a
request that names the form gets it, and so does infinity's own client, which alone sends `raw_scores`.

A body of /score with `inputs` is not of vLLM: it asks how likely its texts are (`tasks/likelihood`). The errors of
/score have vLLM's shape, with the fields `index` and `request_id` of this service's own errors.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ...errors import Invalid
from ...tasks import pairs
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import (
    NO_EFFECT,
    Body,
    ClientFields,
    FailFastList,
    ModelField,
    RerankFields,
    StringOrList,
    TruncationFields,
    as_list,
)
from ...tasks.likelihood import LikelihoodResponse, Variant, score_sentences
from ...tasks.predict import Label
from ...tasks.results import LongObject, MadeList
from ...tokenization.encoding import EncodeOptions
from ...turns import in_turns
from ..responses import Floats
from .fields import LISTED, USAGE, VllmFields, listed, response_id, truncation_fields, usage
from .spec import MESSAGE_ERROR, OPENAI_ERROR, SCORE_ERROR, Explained, TaskSpec, like, type_like

SPANS = EncodeOptions(outputs=frozenset(), spans=True)
TEXT_SCORE = like("TextScore", index=0, score=0.98, text=Explained("a bear", "with return_text", absent=True))
RANKING = like(
    "Ranking",
    index=Explained(0, "of the passage in the request"),
    logit=Explained(4.2, "of a model that is no cross-encoder: the cosine"),
)
RANKING_RESPONSE = like("RankingResponse", "NVIDIA's response, best first.", rankings=[RANKING], usage=USAGE)
ONLY_VLLM = VllmFields.model_fields.keys() - TruncationFields.model_fields.keys()
LABELS_OF_INFINITY = like(
    "ClassifyResponse",
    "infinity's response: the labels of each text, best first.",
    **LISTED | {"object": "classify"},
    id="classify-5f2c0f9e1d3a4b7c",
    data=[list[Label]],
)
CLASS = like(
    "Classification",
    index=0,
    label="positive",
    probs=Explained([0.07, 0.93], "in the order of /info's labels"),
    num_classes=2,
)
LABELS_OF_VLLM = like(
    "VllmClassifyResponse", "vLLM's response.", id="classify-5f2c0f9e1d3a4b7c", **LISTED, data=[CLASS]
)
SCORES = like(
    "ScoreResponse",
    "vLLM's response; the score of a cross-encoder, or of a plain encoder the cosine of two vectors.",
    id="score-5f2c0f9e1d3a4b7c",
    **LISTED,
    data=[like("Score", index=0, object="score", score=0.93)],
)
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
SIDE_FIELDS = dict.fromkeys(name for side in SIDES for name in side)


class Document(Body):
    text: str


class CutFields(VllmFields):
    max_tokens_per_query: int | None = Field(None, ge=0, description="the query is cut after so many tokens; 0: not")
    max_tokens_per_doc: int | None = Field(
        None, ge=0, description="each document is cut after so many tokens, and truncate is true by default; 0: not"
    )


class RerankRequest(ClientFields, RerankFields, CutFields):
    """TEI's request (`texts`), or that of Cohere, Jina, Voyage, infinity and vLLM (`documents`)."""

    texts: FailFastList[str] | None = Field(None, description="as in text-embeddings-inference", examples=[None])
    documents: FailFastList[str | Document] | None = Field(
        None, description="as in all others", examples=[["a bear", "it rains"]]
    )
    top_n: int | None = Field(None, ge=0, description="number of results, best first; 0 or null: all")
    top_k: int | None = Field(None, ge=0, description="Voyage's name of top_n")
    return_text: bool | None = Field(None, description="with texts: each result has its text")
    return_documents: bool | Literal["object", "string"] | None = Field(
        None,
        description='with documents: "object": each result has `document: {"text"}`, "string": the text itself; true: '
        "none, because clients disagree on the form (`index` names the document), or with raw_scores, of infinity, "
        "the text",
    )
    truncation: bool | None = Field(None, description="Voyage's name of truncate")
    max_chunks_per_doc: int | None = Field(
        None, ge=1, description="of Cohere: truncate is true by default; one chunk of a document is read"
    )


class RankingRequest(ClientFields, TruncationFields):
    """NVIDIA's request."""

    query: Document = Field(examples=[{"text": "what is a panda?"}])
    passages: FailFastList[Document] = Field(examples=[[{"text": "a bear"}, {"text": "it rains"}]])


class ClassifyRequest(ModelField, VllmFields):
    """infinity's request. A request with one of vLLM's fields, such as `use_activation`, gets vLLM's response."""

    input: StringOrList = Field(examples=["I like tea."])
    user: str | None = Field(None, description=NO_EFFECT)
    raw_scores: bool = Field(False, description="return logits instead of probabilities")


class ScoreRequest(ModelField, CutFields):
    """vLLM's: one text of the first side against each of the second, or as many against as many. With `inputs`: how
    likely each text is."""

    inputs: StringOrList | None = Field(None, description="texts, for their pseudo-log-likelihoods", examples=[None])
    variant: Variant | None = Field(
        None,
        description="with inputs: within_word (default) masks a token with the later tokens of its word, original "
        "masks each token alone",
    )
    text_1: StringOrList | None = Field(None, examples=["what is a panda?"])
    text_2: StringOrList | None = Field(None, examples=[["an animal", "a river"]])
    queries: StringOrList | None = Field(None, description="as text_1, with documents or items")
    documents: StringOrList | None = None
    items: StringOrList | None = None
    data_1: StringOrList | None = Field(None, description="as text_1, with data_2")
    data_2: StringOrList | None = None
    user: str | None = Field(None, description=NO_EFFECT)


RESULT = like(
    "Result",
    index=Explained(0, "of the document in the request"),
    relevance_score=0.98,
    document=Explained((Document, str), "with return_documents object or string", absent=True),
)
RERANK_RESPONSE = like(
    "RerankResponse",
    "Best first; `data` is `results` again, for Voyage's client.",
    object="rerank",
    id="rerank-5f2c0f9e1d3a4b7c",
    model="sample",
    results=[RESULT],
    data=[RESULT],
    usage=USAGE,
    meta={"tokens": {"input_tokens": 12}},
)
RESPONSES = type_like(([TEXT_SCORE], RERANK_RESPONSE))


async def _rerank(tasks: Tasks, request: RerankRequest) -> Task:
    """Texts ranked by how well they answer a query, in the format of text-embeddings-inference (`texts`) or of Cohere,
    Jina, Voyage, infinity and vLLM (`documents`)."""
    texts, cuts = _texts(request), bool(request.max_tokens_per_doc or request.max_chunks_per_doc)
    fields = truncation_fields(tasks, request, truncates=cuts or None)
    if request.use_activation is False:
        fields["raw_scores"] = True
    [query] = await cut(tasks, request, [request.query], request.max_tokens_per_query)
    read = await cut(tasks, request, texts, request.max_tokens_per_doc)
    asked = request.model_copy(update=fields | {"query": query})
    most = request.top_k if request.top_n is None else request.top_n

    def show(scores: Floats, result: TaskResult) -> Any:
        best = _best_first(scores, result, "score" if request.documents is None else "relevance_score")
        results = [one | _document(request, texts[one["index"]]) for one in best[: most or None]]
        if request.documents is None:
            return results
        own = {"object": "rerank", "id": response_id("rerank"), "model": tasks.manifest.name}
        cost = {"usage": usage(result.tokens), "meta": {"tokens": {"input_tokens": result.tokens}}}
        return own | {"results": results, "data": results} | cost

    return (await pairs.rerank(tasks, asked, read)).then(show)


def _best_first(scores: Floats, result: TaskResult, name: str) -> list[dict[str, Any]]:
    """The place of each text, and its score under `name`; a shadow compares the first place."""
    order = np.argsort(-scores, kind="stable").tolist()
    result.compared = order[:1]
    return [{"index": index, name: float(scores[index])} for index in order]


def _document(request: RerankRequest, text: str) -> dict[str, Any]:
    """What a result holds of its text."""
    if request.texts is not None:
        return {"text": text} if request.return_text else {}
    of_infinity = "raw_scores" in request.model_fields_set
    if request.return_documents == "object":
        return {"document": {"text": text}}
    if request.return_documents == "string" or (request.return_documents is True and of_infinity):
        return {"document": text}
    return {}


def _texts(request: RerankRequest) -> Sequence[str]:
    """Raises Invalid for both dialects' field, or none, and for two different numbers of results."""
    if (request.texts is None) == (request.documents is None):
        state = "neither texts nor documents is set" if request.texts is None else "texts and documents are both set"
        raise Invalid(f"{state}: send one of them, a list of strings", code="documents")
    if request.top_n is not None and request.top_k is not None and request.top_n != request.top_k:
        raise Invalid(f"top_n is {request.top_n} and top_k is {request.top_k}: send one of them", code="top_k")
    if request.texts is not None:
        return request.texts
    return [one if isinstance(one, str) else one.text for one in request.documents or ()]


async def cut(tasks: Tasks, request: CutFields, texts: Sequence[str], most: int | None) -> Sequence[str]:
    """The texts up to the end of their first `most` tokens, if it is set. Raises TooLarge for too many texts."""
    if not most:
        return texts
    tasks.check_count(texts)
    encoded, shorter = await tasks.tokenizer.encode(texts, tasks.reading(request, SPANS), "right"), list[str]()
    async for text, one in in_turns(zip(texts, encoded, strict=True)):
        ends = one.spans[one.spans[:, 1] >= 0, 1]  # without special tokens
        shorter.append(text[: ends[most - 1]] if len(ends) > most else text)
    return shorter


async def _rank(tasks: Tasks, request: RankingRequest) -> Task:
    """Passages ranked by how well they answer a query, in the format of NVIDIA."""
    fields = RerankFields(query=request.query.text, raw_scores=True, **truncation_fields(tasks, request))
    texts = [passage.text for passage in request.passages]

    def show(logits: Floats, result: TaskResult) -> dict[str, Any]:
        return {"rankings": _best_first(logits, result, "logit"), "usage": usage(result.tokens)}

    return (await pairs.rerank(tasks, fields, texts)).then(show)


async def _classify(tasks: Tasks, request: ClassifyRequest) -> Task:
    """A classifier's labels for texts, in the format of infinity or of vLLM."""
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.raw_scores or request.use_activation is False
    as_vllm = not ONLY_VLLM.isdisjoint(request.model_fields_set)

    def show(scores: Floats, result: TaskResult) -> LongObject:
        data = MadeList(partial(_vllm_labels if as_vllm else _infinity_labels, tasks), range(len(scores)), scores)
        return listed(tasks, result, "classify", data, named="list" if as_vllm else "classify")

    return (await pairs.score_labels(tasks, as_list(request.input), fields, raw=raw)).then(show, accepts_empty=True)


def _infinity_labels(tasks: Tasks, _: int, scores: Floats) -> list[dict[str, Any]]:
    order = (-scores).argsort(kind="stable").tolist()
    return [{"score": float(scores[i]), "label": tasks.manifest.labels[i]} for i in order]


def _vllm_labels(tasks: Tasks, index: int, scores: Floats) -> dict[str, Any]:
    label = tasks.manifest.labels[int(scores.argmax())]
    return {"index": index, "label": label, "probs": scores.tolist(), "num_classes": len(scores)}


async def _score(tasks: Tasks, request: ScoreRequest) -> Task:
    """How well pairs of texts fit, in the format of vLLM: a cross-encoder's score, or the cosine of vectors; with
    inputs: how likely texts are, by a pass of the masked-language model for each token."""
    if request.inputs is not None:
        return await _score_sentences(tasks, request, request.inputs)
    if request.variant is not None:
        raise Invalid("variant says how texts in `inputs` are scored: send inputs, or leave it out", code="variant")
    first, second = _find_sides(request)
    first = await cut(tasks, request, first, request.max_tokens_per_query)
    second = await cut(tasks, request, second, request.max_tokens_per_doc)
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.use_activation is False

    def show(scores: Floats, result: TaskResult) -> LongObject:
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores.tolist())]
        return listed(tasks, result, "score", data)

    return (await pairs.score_pairs(tasks, first, second, fields, raw=raw)).then(show)


async def _score_sentences(tasks: Tasks, request: ScoreRequest, inputs: str | list[str]) -> Task:
    """Raises Invalid for a field of pairs beside `inputs`."""
    if given := [name for name in (*SIDE_FIELDS, "use_activation") if getattr(request, name) is not None]:
        message = f"inputs asks how likely texts are, and {', '.join(given)} is for scores of pairs: send one of them"
        raise Invalid(message, code="pair")
    fields = request.model_copy(update=truncation_fields(tasks, request))
    task = await score_sentences(tasks, as_list(inputs), fields, request.variant or "within_word")
    return task if isinstance(inputs, list) else task.then(lambda value, _: value[0])


def _find_sides(request: ScoreRequest) -> tuple[Sequence[str], Sequence[str]]:
    """The texts of both sides. Raises Invalid if not exactly two fields hold texts, or these do not belong together."""
    given = {name: value for name in SIDE_FIELDS if (value := getattr(request, name)) is not None}
    for first, second in SIDES:
        if given.keys() == {first, second}:
            return as_list(given[first]), as_list(given[second])
    found = ", ".join(given) or "none of them"
    raise Invalid(
        f"a score needs two fields: {' or '.join(map(' and '.join, SIDES))}; the body has {found}. A likelihood needs "
        "`inputs`",
        code="pair",
    )


RERANK = TaskSpec("rerank", _rerank, RESPONSES, of_tei=True, error_shape=MESSAGE_ERROR)
RERANK_ROUTES = {
    "/rerank": RERANK,
    "/v1/rerank": replace(RERANK, operation="rerank_v1"),
    "/v2/rerank": replace(RERANK, operation="rerank_v2"),
    "/v1/ranking": TaskSpec("rerank", _rank, RANKING_RESPONSE, error_shape=MESSAGE_ERROR, operation="ranking"),
}
SCORE = TaskSpec("score", _score, SCORES | LikelihoodResponse, error_shape=SCORE_ERROR)
ROUTES = {
    "/classify": TaskSpec("classify", _classify, LABELS_OF_INFINITY | LABELS_OF_VLLM, error_shape=OPENAI_ERROR),
    "/score": SCORE,
    "/v1/score": replace(SCORE, operation="score_v1"),
}
