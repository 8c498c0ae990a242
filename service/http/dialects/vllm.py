"""vLLM's /score and /pooling.

/score is a pair's score by `text_1` and `text_2` (or the other names that vLLM has for them). A body with `inputs`
is not of vLLM: it asks how likely its texts are (`tasks/likelihood`). The errors of both have vLLM's shape, with
the fields `index` and `request_id` of this service's own errors.
"""

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...errors import Invalid
from ...tasks.embed import embed_texts
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, EmbeddingFields, ModelField, StringOrList, as_list
from ...tasks.likelihood import LikelihoodResponse, Variant, score_sentences
from ...tasks.pairs import score_labels, score_pairs
from ...tasks.results import LongObject, MadeList
from ..responses import Floats
from .openai import Usage, VllmFields, agreed, as_base64_text, listed, truncation_fields
from .rerank import CutFields, cut_sides
from .spec import OPENAI_ERROR, ErrorShape, OpenAIErrorBody, TaskSpec, openai_error

SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


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


class Score(BaseModel):
    index: int = Field(examples=[0])
    object: str = Field(examples=["score"])
    score: float = Field(examples=[0.93])


class ScoreResponse(BaseModel):
    """vLLM's response; the score of a cross-encoder, or of a plain encoder the cosine of two vectors."""

    id: str = Field(examples=["score-5f2c0f9e1d3a4b7c"])
    created: int = Field(examples=[1790000000])
    object: str = Field(examples=["list"])
    model: str = Field(examples=["sample"])
    data: list[Score]
    usage: Usage


class ScoreErrorBody(OpenAIErrorBody):
    index: int | None = Field(None, description="index of the input with the error", examples=[3])
    request_id: str = Field(examples=["5f2c0f9e1d3a4b7c"])


class PoolingRequest(ModelField, EmbeddingFields, VllmFields):
    """vLLM's request for a vector or for a classifier's scores; vectors have unit length unless it says otherwise."""

    input: StringOrList = Field(examples=["my dog is hairy"])
    user: str | None = Field(None, description=NO_EFFECT)
    task: Literal["embed", "classify"] | None = Field(
        None, description="null: classify where the model has a classifier of texts, else embed"
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=0, description="keep the first n numbers, before normalizing; 0: all")


class Pooled(BaseModel):
    index: int = Field(examples=[0])
    object: str = Field(examples=["pooling"])
    data: list[float] | str = Field(description="base64: of little-endian float32", examples=[[0.1, -0.2, 0.3]])


class PoolingResponse(BaseModel):
    """vLLM's response."""

    id: str = Field(examples=["pooling-5f2c0f9e1d3a4b7c"])
    created: int = Field(examples=[1790000000])
    object: str = Field(examples=["list"])
    model: str = Field(examples=["sample"])
    data: list[Pooled]
    usage: Usage


def _score_error(request_id: str, status: int, message: str, code: str, index: int | None) -> dict[str, Any]:
    own = {"request_id": request_id} if index is None else {"request_id": request_id, "index": index}
    return openai_error(request_id, status, message, code, index) | own


async def _score(tasks: Tasks, request: ScoreRequest) -> Task:
    if request.inputs is not None:
        return await _score_sentences(tasks, request, request.inputs)
    if request.variant is not None:
        raise Invalid("variant says how texts in `inputs` are scored: send inputs, or leave it out", code="variant")
    first, second = await cut_sides(tasks, request, *_find_sides(request))
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.use_activation is False

    def show(scores: Floats, result: TaskResult) -> LongObject:
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores.tolist())]
        return listed(tasks, result, "score", data)

    return (await score_pairs(tasks, first, second, fields, raw=raw, accepts_empty=True)).then(show)


async def _score_sentences(tasks: Tasks, request: ScoreRequest, inputs: str | list[str]) -> Task:
    """Raises Invalid for a field of pairs beside `inputs`."""
    names = [*dict.fromkeys(name for side in SIDES for name in side), "use_activation"]
    if given := [name for name in names if getattr(request, name) is not None]:
        message = f"inputs asks how likely texts are, and {', '.join(given)} is for scores of pairs: send one of them"
        raise Invalid(message, code="pair")
    fields = request.model_copy(update=truncation_fields(tasks, request))
    task = await score_sentences(tasks, as_list(inputs), fields, request.variant or "within_word")
    return task if isinstance(inputs, list) else task.then(lambda value, _: value[0])


def _find_sides(request: ScoreRequest) -> tuple[list[str], list[str]]:
    """Raises Invalid where not exactly two fields hold texts, or these two do not belong together."""
    texts = {name: getattr(request, name) for side in SIDES for name in side}
    given = {name: value for name, value in texts.items() if value is not None}
    for first, second in SIDES:
        if given.keys() == {first, second}:
            return as_list(given[first]), as_list(given[second])
    found = ", ".join(given) or "none of them"
    raise Invalid(
        f"a score needs two fields: {' or '.join(map(' and '.join, SIDES))}; the body has {found}. A likelihood needs "
        "`inputs`",
        code="pair",
    )


async def _pooling(tasks: Tasks, request: PoolingRequest) -> Task:
    fields, texts = request.model_copy(update=_pooling_fields(tasks, request)), as_list(request.input)
    if (request.task or ("classify" if "labels" in tasks.manifest.heads else "embed")) == "embed":
        task = await embed_texts(tasks, texts, fields, accepts_empty=True)
    else:
        request.refuse_vector_fields()
        raw = request.use_activation is False
        task = await score_labels(tasks, texts, fields, raw=raw, accepts_empty=True)
    as_base64 = request.encoding_format == "base64"

    def show_row(index: int, row: Floats) -> dict[str, Any]:
        return {"index": index, "object": "pooling", "data": as_base64_text(row) if as_base64 else row}

    def show(value: Floats, result: TaskResult) -> LongObject:
        rows = value.astype("<f4")
        return listed(tasks, result, "pooling", MadeList(show_row, range(len(rows)), rows))

    return task.then(show)


def _pooling_fields(tasks: Tasks, request: PoolingRequest) -> dict[str, Any]:
    """The request's fields of /embed that vLLM names otherwise, or whose default is another."""
    fields = truncation_fields(tasks, request) | {"dimensions": request.dimensions or None}
    stated = agreed(request, "normalize", "use_activation")
    return fields | {"normalize": tasks.embedding.openai_normalize if stated is None else stated}


SCORE = TaskSpec(
    "score",
    _score,
    ScoreRequest,
    ScoreResponse | LikelihoodResponse,
    "How well pairs of texts fit, in the format of vLLM: a cross-encoder's score, or the cosine of vectors; with "
    "inputs: how likely texts are, by a pass of the masked-language model for each token",
    error_shape=ErrorShape(_score_error, ScoreErrorBody),
)
ROUTES = {
    "/score": SCORE,
    "/v1/score": replace(SCORE, operation="score_v1"),
    "/pooling": TaskSpec(
        "pooling",
        _pooling,
        PoolingRequest,
        PoolingResponse,
        "A vector or a classifier's scores for each text, in the format of vLLM",
        error_shape=OPENAI_ERROR,
    ),
}
