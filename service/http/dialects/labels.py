"""/classify: the labels of texts, in the format of infinity or of vLLM."""

from functools import partial
from typing import Any

from pydantic import Field

from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, ModelField, StringOrList, TruncationFields, as_list
from ...tasks.pairs import score_labels
from ...tasks.predict import Floats, Label
from ...tasks.results import LongObject, MadeList
from .fields import VllmFields, truncation_fields
from .shapes import OF_ONE_RESPONSE, Explained, like, listed
from .spec import OPENAI_ERROR, TaskSpec

ONLY_VLLM = VllmFields.model_fields.keys() - TruncationFields.model_fields.keys()
OF_INFINITY = like(
    "ClassifyResponse",
    "infinity's response: the labels of each text, best first.",
    **OF_ONE_RESPONSE | {"object": "classify"},
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
OF_VLLM = like(
    "VllmClassifyResponse", "vLLM's response.", id="classify-5f2c0f9e1d3a4b7c", **OF_ONE_RESPONSE, data=[CLASS]
)


class ClassifyRequest(ModelField, VllmFields):
    """infinity's request. A request with one of vLLM's fields, such as `use_activation`, gets vLLM's response."""

    input: StringOrList = Field(examples=["I like tea."])
    user: str | None = Field(None, description=NO_EFFECT)
    raw_scores: bool = Field(False, description="return logits instead of probabilities")


async def _classify(tasks: Tasks, request: ClassifyRequest) -> Task:
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


ROUTES = {
    "/classify": TaskSpec(
        "classify",
        _classify,
        ClassifyRequest,
        OF_INFINITY | OF_VLLM,
        "A classifier's labels for texts, in the format of infinity or of vLLM",
        error_shape=OPENAI_ERROR,
    ),
}
