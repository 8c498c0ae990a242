"""The models of this service as OpenAI, infinity and Ollama list and describe them; its version, for Ollama."""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from ...artifact import Artifact, Manifest
from ...errors import NotFound
from ...models import ServedModel
from ...tasks.defaults import is_cross_encoder
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, Body
from ..responses import json_response
from .spec import Explained, TaskSpec, like

CREATED = Explained(1790000000, "when this service started, in seconds since 1970")
MODEL = like(
    "Model",
    id="sample",
    object="model",
    created=CREATED,
    owned_by="packbert",
    root=Explained("sample", "of vLLM: the same id"),
    max_model_len=Explained(512, "of vLLM: tokens in one text"),
    type=Explained("base", "of Mistral"),
    capabilities=Explained(dict[str, bool], "of Mistral: none, since the service writes no text"),
)
INFINITY_MODEL = like(
    "InfinityModel",
    id="sample",
    object="model",
    stats=Explained(dict[str, float], "empty: /metrics has them"),
    created=CREATED,
    backend="onnxruntime",
    capabilities=["embed", "classify"],
)
OLLAMA_MODEL = like(
    "OllamaModel",
    name="sample",
    model="sample",
    digest="5f2c0f9e1d3a",
    details={"format": "onnx", "family": "bert", "quantization_level": "int8"},
    size=Explained(36000000, "bytes"),
    size_vram=0,
)
OPENAI_LIST = like("ModelsResponse", "OpenAI's list of models.", object="list", data=[MODEL])
INFINITY_LIST = like("InfinityModelsResponse", object="list", data=[INFINITY_MODEL])
OLLAMA_LIST = like("OllamaModels", models=[OLLAMA_MODEL])
Describe = Callable[[Artifact, int], dict[str, Any]]  # a model, and when the service started


class ShowRequest(Body):
    model: str = Field(description="one of the service's models", examples=["sample"])
    verbose: bool | None = Field(None, description=NO_EFFECT)


async def _show(tasks: Tasks, _: ShowRequest) -> Task:
    """Ollama's description of a model."""
    manifest = tasks.manifest

    async def answer(_: TaskResult) -> dict[str, Any]:
        family = manifest.family
        own = {"general.architecture": family, f"{family}.context_length": manifest.max_tokens}
        own[f"{family}.embedding_length"] = manifest.sizes["hidden"]
        return {"details": _ollama_details(manifest), "model_info": own, "capabilities": ["embedding"]}

    return Task(None, answer)


def _openai(artifact: Artifact, created: int) -> dict[str, Any]:
    name, most = artifact.manifest.name, artifact.manifest.max_tokens
    own = {"id": name, "object": "model", "created": created, "owned_by": "packbert", "root": name}
    return own | {"max_model_len": most, "type": "base", "capabilities": {}}


def _infinity(artifact: Artifact, created: int) -> dict[str, Any]:
    manifest = artifact.manifest
    has = {"embed": True, "classify": "labels" in manifest.heads, "rerank": is_cross_encoder(manifest)}
    own = {"id": manifest.name, "object": "model", "stats": {}, "created": created, "backend": "onnxruntime"}
    return own | {"capabilities": [name for name, there in has.items() if there]}


def _ollama(artifact: Artifact, _: int) -> dict[str, Any]:
    manifest, size = artifact.manifest, artifact.weights_bytes
    own: dict[str, Any] = {"name": manifest.name, "model": manifest.name, "digest": artifact.digest}
    details = _ollama_details(manifest)
    return own | {"details": details, "size": size, "size_vram": size if manifest.device == "cuda" else 0}


def _ollama_details(manifest: Manifest) -> dict[str, str]:
    return {"format": "onnx", "family": manifest.family, "quantization_level": manifest.precision}


def add_get_routes(router: APIRouter, model: ServedModel) -> None:
    started = int(time.time())

    def add_list(path: str, name: str, whose: str, shape: type[BaseModel], describe: Describe) -> None:
        @router.get(path, name=name, response_model=shape, summary=f"{whose} list of models: those that run")
        async def models() -> Response:
            listed = [describe(each.artifact, started) for each in model.group.values()]
            return json_response({"models": listed} if shape is OLLAMA_LIST else {"object": "list", "data": listed})

    for path, row in LISTS.items():
        add_list(path, *row)

    @router.get("/v1/models/{name:path}", response_model=MODEL, summary="OpenAI's description of a model")
    async def retrieve_model(name: str) -> Response:
        if name not in model.group:
            models = ", ".join(model.group)
            raise NotFound(f"there is no model {name!r}: this server runs {models}", code="model_not_found")
        return json_response(_openai(model.group[name].artifact, started))

    @router.get("/api/version", response_model=dict[str, str], summary="The version of this service, for Ollama")
    async def version_for_ollama() -> Response:
        return json_response({"version": version("packbert")})


ROUTES = {"/api/show": TaskSpec("show", _show, dict[str, Any])}
LISTS: dict[str, tuple[str, str, type[BaseModel], Describe]] = {  # path -> name of the route, whose list, its shape
    "/v1/models": ("models", "OpenAI's", OPENAI_LIST, _openai),
    "/models": ("models_of_infinity", "infinity's", INFINITY_LIST, _infinity),
    "/api/tags": ("models_of_ollama", "Ollama's", OLLAMA_LIST, _ollama),
    "/api/ps": ("ps_of_ollama", "Ollama's", OLLAMA_LIST, _ollama),
}
