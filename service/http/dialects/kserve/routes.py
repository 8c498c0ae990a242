"""The protocol's routes: health, metadata, and inference on the input `text`.

The outputs are `embedding`, and of a classifier of texts `scores` and `label`, which are also its outputs by default.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.artifact import Manifest
from service.backend import Backend
from service.errors import Invalid
from service.http.dialects.kserve.tensors import (
    JSON_LENGTH,
    InferParameters,
    InferRequest,
    InferResponse,
    attach_texts,
    build_response,
    read_texts,
)
from service.http.dialects.spec import TaskSpec
from service.http.responses import JSON
from service.tasks.base import TaskResult, Tasks
from service.tasks.defaults import embedding_defaults
from service.tasks.pairs.score import score_labels
from service.tasks.vectors.embed import embed_texts
from service.tokenization.encoding import Text

VERSION = "1"  # an artifact has no versions; clients of the protocol ask for one
VECTORS = ("embedding",)
LABELS = ("scores", "label")


class ServerMetadata(BaseModel):
    name: str = Field(examples=["bert-service"])
    version: str
    extensions: list[str] = Field(examples=[["binary_tensor_data"]])


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    ready: bool


class ModelReady(BaseModel):
    name: str = Field(examples=["sample"])
    ready: bool


class TensorMetadata(BaseModel):
    name: str = Field(examples=["text"])
    datatype: str = Field(examples=["BYTES"])
    shape: list[int] = Field(description="-1: any size", examples=[[-1]])


class ModelMetadata(BaseModel):
    name: str = Field(examples=["sample"])
    versions: list[str] = Field(examples=[["1"]])
    platform: str = Field(examples=["onnxruntime"])
    inputs: list[TensorMetadata] = Field(description="a classifier of texts also takes `text_pair`")
    outputs: list[TensorMetadata]


async def _infer(tasks: Tasks, request: InferRequest, *, timeout_seconds: float) -> TaskResult:
    parameters, manifest = request.parameters, tasks.manifest
    names = _find_outputs(manifest, request)
    texts = _find_inputs(request)
    if parameters.timeout and parameters.timeout < 1e6 * timeout_seconds:
        timeout_seconds = parameters.timeout / 1e6
    if names == VECTORS:
        result = await _embed(tasks, texts, parameters, timeout_seconds=timeout_seconds)
        outputs = {"embedding": result.value}
    else:
        raw = parameters.raw_scores
        result = await score_labels(tasks, texts, parameters, raw=raw, timeout_seconds=timeout_seconds)
        best = [manifest.labels[i] for i in result.value.argmax(axis=-1).tolist()]
        outputs = {"scores": result.value.astype("<f4"), "label": best}
    result.value = await build_response(manifest.name, VERSION, request, outputs)
    return result


async def _embed(tasks: Tasks, texts: list[Text], parameters: InferParameters, *, timeout_seconds: float) -> TaskResult:
    plain = [text for text in texts if isinstance(text, str)]
    if len(plain) < len(texts):
        raise Invalid("text_pair is an input of scores and label, not of embedding: leave it out", code="tensor")
    return await embed_texts(tasks, plain, parameters, timeout_seconds=timeout_seconds)


def _find_outputs(manifest: Manifest, request: InferRequest) -> tuple[str, ...]:
    """VECTORS or LABELS. Raises Invalid for an output that the model does not have, or for outputs of both."""
    has_labels = "labels" in manifest.heads
    if not request.outputs:
        return LABELS if has_labels else VECTORS
    asked = {one.name for one in request.outputs}
    known = (*VECTORS, *LABELS) if has_labels else VECTORS
    if unknown := sorted(asked.difference(known)):
        raise Invalid(f"this model has no output {unknown[0]!r}; it has {', '.join(known)}", code="tensor")
    if asked <= {*LABELS}:
        return LABELS
    if asked <= {*VECTORS}:
        return VECTORS
    raise Invalid("embedding and a classifier's outputs are two tasks: send a request for each", code="tensor")


def _find_inputs(request: InferRequest) -> list[Text]:
    """The texts, or the pairs with `text_pair`. Raises Invalid for other inputs."""
    names = [one.name for one in request.inputs]
    texts, seconds = read_texts(request, "text"), read_texts(request, "text_pair")
    if texts is None or sorted(names) not in (["text"], ["text", "text_pair"]):
        given = ", ".join(names) or "none"
        raise Invalid(f"the inputs are {given}; this model takes text, and text_pair for pairs", code="tensor")
    if seconds is None:
        return [*texts]
    if len(seconds) != len(texts):
        raise Invalid(f"text has {len(texts)} rows and text_pair {len(seconds)}: send as many", code="tensor")
    return list(zip(texts, seconds, strict=True))


INFER = TaskSpec(
    "infer",
    _infer,
    InferRequest,
    InferResponse,
    "Inference on texts by KServe's Open Inference Protocol; binary tensors as in Triton",
    binary_header=JSON_LENGTH,
    attach=attach_texts,
)


def task_routes(backend: Backend) -> dict[str, TaskSpec]:
    """By paths with the model's name: another name is a 404."""
    model = f"/v2/models/{backend.artifact.manifest.name}"
    versioned = replace(INFER, operation="infer_by_version")
    return {f"{model}/infer": INFER, f"{model}/versions/{VERSION}/infer": versioned}


def add_get_routes(router: APIRouter, backend: Backend) -> None:
    name = backend.artifact.manifest.name
    metadata = _describe_model(backend)

    @router.get("/v2", response_model=ServerMetadata, summary="Name, version and extensions of this server")
    async def server_metadata() -> Response:
        extensions = ["binary_tensor_data"]
        return _json({"name": "bert-service", "version": version("bert-service"), "extensions": extensions})

    @router.get("/v2/health/live", response_model=Live, summary="The process responds, as /health")
    async def server_live() -> Response:
        return _json({"live": True})

    @router.get("/v2/health/ready", response_model=Ready, summary="The model is ready, as /ready")
    async def server_ready() -> Response:
        return _ready({}, await backend.ready())

    for suffix, of_version in (("", ""), (f"/versions/{VERSION}", "_by_version")):
        path = f"/v2/models/{name}{suffix}"

        @router.get(
            path, response_model=ModelMetadata, name=f"model_metadata{of_version}", summary="Inputs and outputs"
        )
        async def model_metadata() -> Response:
            return _json(metadata)

        @router.get(f"{path}/ready", response_model=ModelReady, name=f"model_ready{of_version}", summary="As /ready")
        async def model_ready() -> Response:
            return _ready({"name": name}, await backend.ready())


def _describe_model(backend: Backend) -> dict[str, Any]:
    manifest = backend.artifact.manifest
    pooling = embedding_defaults(manifest, backend.settings).pooling
    outputs = [_tensor("embedding", "FP32", int(manifest.outputs[pooling].shape[-1]))]
    if "labels" in manifest.heads:
        outputs += [_tensor("scores", "FP32", len(manifest.labels)), _tensor("label", "BYTES")]
    is_cross_encoder = len(manifest.labels) == 1 and "labels" in manifest.heads
    inputs = [_tensor(one, "BYTES") for one in (("text", "text_pair") if is_cross_encoder else ("text",))]
    return {
        "name": manifest.name,
        "versions": [VERSION],
        "platform": "onnxruntime",
        "inputs": inputs,
        "outputs": outputs,
    }


def _tensor(name: str, datatype: str, *sizes: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1, *sizes]}


def _ready(content: Mapping[str, Any], reason: str) -> Response:
    return _json({**content, "ready": not reason}, status=503 if reason else 200)


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type=JSON)
