"""/classify and /score in the format of vLLM and infinity: scores of labels, of pairs, and of texts.

vLLM has several names for the two sides of a pair. A body of /score with `inputs` is not of vLLM: it asks how likely
its texts are (`tasks/likelihood`). The errors of /score have vLLM's shape, with the fields `index` and `request_id` of
this service's own errors.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field

from ...errors import Invalid
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, ModelField, StringOrList, TruncationFields, as_list
from ...tasks.likelihood import LikelihoodResponse, Variant, score_sentences
from ...tasks.pairs import score_labels, score_pairs
from ...tasks.predict import Floats, Label
from ...tasks.results import LongObject, MadeList
from .fields import LISTED, VllmFields, listed, truncation_fields
from .rerank import CutFields, cut
from .spec import OPENAI_ERROR, SCORE_ERROR, Explained, TaskSpec, like

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


async def _classify(tasks: Tasks, request: ClassifyRequest) -> Task:
    """A classifier's labels for texts, in the format of infinity or of vLLM."""
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.raw_scores or request.use_activation is False
    as_vllm = not ONLY_VLLM.isdisjoint(request.model_fields_set)

    def show(scores: Floats, result: TaskResult) -> LongObject:
        data = MadeList(partial(_vllm_labels if as_vllm else _rank, tasks), range(len(scores)), scores)
        return listed(tasks, result, "classify", data, named="list" if as_vllm else "classify")

    return (await score_labels(tasks, as_list(request.input), fields, raw=raw)).then(show, accepts_empty=True)


def _rank(tasks: Tasks, _: int, scores: Floats) -> list[dict[str, Any]]:
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

    return (await score_pairs(tasks, first, second, fields, raw=raw)).then(show)


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


SCORE = TaskSpec("score", _score, SCORES | LikelihoodResponse, error_shape=SCORE_ERROR)
ROUTES = {
    "/classify": TaskSpec("classify", _classify, LABELS_OF_INFINITY | LABELS_OF_VLLM, error_shape=OPENAI_ERROR),
    "/score": SCORE,
    "/v1/score": replace(SCORE, operation="score_v1"),
}
