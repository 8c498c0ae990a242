"""Ollama's routes of vectors, and the model and version that its clients ask for."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from ...artifact import Artifact, Manifest
from ...models import ServedModel
from ...tasks.embed import embed_texts
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import (
    NO_EFFECT,
    Body,
    EmbeddingFields,
    ModelField,
    StringOrList,
    TruncationFields,
    as_list,
)
from ...tasks.results import LongObject
from ..responses import Floats, json_response
from .spec import TaskSpec


class OllamaFields(ModelField, TruncationFields):
    options: dict[str, Any] | None = Field(None, description=NO_EFFECT)
    keep_alive: str | float | None = Field(None, description=NO_EFFECT)


class OllamaRequest(OllamaFields):
    input: StringOrList = Field(examples=["my dog is hairy"])
    dimensions: int | None = Field(None, ge=1, description="keep the first n numbers, before normalizing")


class OllamaPromptRequest(OllamaFields):
    prompt: str = Field(examples=["my dog is hairy"])


class OllamaResponse(BaseModel):
    model: str = Field(examples=["sample"])
    embeddings: list[list[float]]
    prompt_eval_count: int = Field(description="tokens", examples=[7])
    total_duration: int = Field(description="nanoseconds", examples=[9_000_000])
    load_duration: int = Field(description="0: the model is loaded", examples=[0])


class OllamaPromptResponse(BaseModel):
    embedding: list[float]


class ShowRequest(Body):
    model: str = Field(description="one of the service's models", examples=["sample"])
    verbose: bool | None = Field(None, description=NO_EFFECT)


async def _embed(tasks: Tasks, request: OllamaRequest) -> Task:
    fields = EmbeddingFields(
        normalize=tasks.embedding.openai_normalize,
        dimensions=request.dimensions,
        **request.how_texts_are_read(truncates=True),
    )
    task, model = await embed_texts(tasks, as_list(request.input), fields, accepts_empty=True), tasks.manifest.name

    def show(vectors: Floats, of: TaskResult) -> LongObject:
        own = {"model": model, "total_duration": int(sum(of.stage_seconds) * 1e9), "load_duration": 0}
        return LongObject(own, prompt_eval_count=of.tokens, embeddings=vectors)

    return task.then(show)


async def _embed_prompt(tasks: Tasks, request: OllamaPromptRequest) -> Task:
    """The vector as the checkpoint gives it: Ollama scales only those of /api/embed to unit length."""
    fields = EmbeddingFields(**request.how_texts_are_read(truncates=True))
    task = await embed_texts(tasks, [request.prompt], fields, accepts_empty=True)
    return task.then(lambda vectors, _: {"embedding": vectors[0]})


async def _show(tasks: Tasks, _: ShowRequest) -> Task:
    manifest = tasks.manifest

    async def answer(_: TaskResult) -> dict[str, Any]:
        family = manifest.family
        own = {"general.architecture": family, f"{family}.context_length": manifest.max_tokens}
        own[f"{family}.embedding_length"] = manifest.sizes["hidden"]
        return {"details": describe(manifest), "model_info": own, "capabilities": ["embedding"]}

    return Task(None, answer)


def describe(manifest: Manifest) -> dict[str, str]:
    return {"format": "onnx", "family": manifest.family, "quantization_level": manifest.precision}


ABOUT = "Vectors of unit length by default, in the format of Ollama"
ABOUT_PROMPT = "A vector as the checkpoint gives it, in the format of Ollama"
ROUTES = {
    "/api/embed": TaskSpec(
        "embeddings", _embed, OllamaRequest, OllamaResponse, ABOUT, operation="embeddings_of_ollama"
    ),
    "/api/embeddings": TaskSpec(
        "embeddings",
        _embed_prompt,
        OllamaPromptRequest,
        OllamaPromptResponse,
        ABOUT_PROMPT,
        operation="prompt_of_ollama",
    ),
    "/api/show": TaskSpec("show", _show, ShowRequest, dict[str, Any], "Ollama's description of a model"),
}


def add_get_routes(router: APIRouter, model: ServedModel) -> None:
    def listed(artifact: Artifact) -> dict[str, Any]:
        manifest, size = artifact.manifest, artifact.weights_bytes
        own = {"name": manifest.name, "model": manifest.name, "digest": artifact.digest, "details": describe(manifest)}
        return own | {"size": size, "size_vram": size if manifest.device == "cuda" else 0}

    async def models_of_ollama() -> Response:
        return json_response({"models": [listed(one.artifact) for one in model.group.values()]})

    for path, name in (("/api/tags", "models_of_ollama"), ("/api/ps", "ps_of_ollama")):
        about = "Ollama's list of models: those that run"
        router.get(path, response_model=dict[str, Any], summary=about, name=name)(models_of_ollama)

    @router.get("/api/version", response_model=dict[str, str], summary="The version of this service, for Ollama")
    async def version_for_ollama() -> Response:
        return json_response({"version": version("packbert")})
