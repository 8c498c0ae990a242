"""infinity's routes beside /embeddings: its list of models, and /classify, which vLLM has in another shape."""

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from ...artifact import Manifest
from ...models import ServedModel
from ...tasks.defaults import is_cross_encoder
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, ModelField, StringOrList, TruncationFields, as_list
from ...tasks.pairs import score_labels
from ...tasks.predict import Floats, Label
from ...tasks.results import LongObject, MadeList
from ..responses import json_response
from .openai import Usage, VllmFields, listed, truncation_fields
from .spec import OPENAI_ERROR, TaskSpec

ONLY_VLLM = VllmFields.model_fields.keys() - TruncationFields.model_fields.keys()


class ClassifyRequest(ModelField, VllmFields):
    """infinity's request. A request with one of vLLM's fields, such as `use_activation`, gets vLLM's response."""

    input: StringOrList = Field(examples=["I like tea."])
    user: str | None = Field(None, description=NO_EFFECT)
    raw_scores: bool = Field(False, description="return logits instead of probabilities")


class ClassifyResponse(BaseModel):
    """infinity's response: the labels of each text, best first."""

    object: str = Field(examples=["classify"])
    data: list[list[Label]]
    model: str = Field(examples=["sample"])
    usage: Usage
    id: str = Field(examples=["classify-5f2c0f9e1d3a4b7c"])
    created: int = Field(examples=[1790000000])


class Classification(BaseModel):
    index: int = Field(examples=[0])
    label: str = Field(examples=["positive"])
    probs: list[float] = Field(description="in the order of /info's labels", examples=[[0.07, 0.93]])
    num_classes: int = Field(examples=[2])


class VllmClassifyResponse(BaseModel):
    """vLLM's response."""

    id: str = Field(examples=["classify-5f2c0f9e1d3a4b7c"])
    object: str = Field(examples=["list"])
    created: int = Field(examples=[1790000000])
    model: str = Field(examples=["sample"])
    data: list[Classification]
    usage: Usage


class InfinityModel(BaseModel):
    id: str = Field(examples=["sample"])
    object: str = Field(examples=["model"])
    stats: dict[str, float] = Field(description="empty: /metrics has them", examples=[{}])
    created: int = Field(description="when this service started, in seconds since 1970", examples=[1790000000])
    backend: str = Field(examples=["onnxruntime"])
    capabilities: list[str] = Field(examples=[["embed", "classify"]])


class InfinityModelsResponse(BaseModel):
    object: str = Field(examples=["list"])
    data: list[InfinityModel]


async def _classify(tasks: Tasks, request: ClassifyRequest) -> Task:
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.raw_scores or request.use_activation is False
    as_vllm = not ONLY_VLLM.isdisjoint(request.model_fields_set)

    def show(scores: Floats, result: TaskResult) -> LongObject:
        data = MadeList(partial(_vllm_labels if as_vllm else _rank, tasks), range(len(scores)), scores)
        return listed(tasks, result, "classify", data, named="list" if as_vllm else "classify")

    return (await score_labels(tasks, as_list(request.input), fields, raw=raw, accepts_empty=True)).then(show)


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
        ClassifyResponse | VllmClassifyResponse,
        "A classifier's labels for texts, in the format of infinity or of vLLM",
        error_shape=OPENAI_ERROR,
    ),
}


def add_get_routes(router: APIRouter, model: ServedModel) -> None:
    started = int(time.time())

    def describe(manifest: Manifest) -> dict[str, Any]:
        capabilities = ["embed"]
        if "labels" in manifest.heads:
            capabilities.append("classify")
        if is_cross_encoder(manifest):
            capabilities.append("rerank")
        own = {"id": manifest.name, "object": "model", "stats": {}, "created": started}
        return own | {"backend": "onnxruntime", "capabilities": capabilities}

    @router.get("/models", response_model=InfinityModelsResponse, summary="infinity's list of models: those that run")
    async def models_of_infinity() -> Response:
        models = [describe(one.artifact.manifest) for one in model.group.values()]
        return json_response({"object": "list", "data": models})
