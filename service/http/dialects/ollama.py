"""Ollama's routes of vectors, and the model and version that its clients ask for."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from ...artifact import Artifact
from ...models import ServedModel
from ...tasks.embed import embed_texts
from ...tasks.flow import Task, Tasks
from ...tasks.inputs import (
    NO_EFFECT,
    EmbeddingFields,
    ModelField,
    StringOrList,
    TruncationFields,
    as_list,
)
from ...tasks.results import LongObject
from ..responses import json_response
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


class OllamaPromptResponse(BaseModel):
    embedding: list[float]


async def _embed(tasks: Tasks, request: OllamaRequest) -> Task:
    fields = EmbeddingFields(
        normalize=tasks.embedding.openai_normalize,
        dimensions=request.dimensions,
        **request.how_texts_are_read(),
    )
    task, model = await embed_texts(tasks, as_list(request.input), fields, accepts_empty=True), tasks.manifest.name
    return task.then(lambda vectors, of: LongObject(model=model, prompt_eval_count=of.tokens, embeddings=vectors))


async def _embed_prompt(tasks: Tasks, request: OllamaPromptRequest) -> Task:
    """The vector as the checkpoint gives it: Ollama scales only those of /api/embed to unit length."""
    fields = EmbeddingFields(**request.how_texts_are_read())
    task = await embed_texts(tasks, [request.prompt], fields, accepts_empty=True)
    return task.then(lambda vectors, _: {"embedding": vectors[0]})


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
}


def add_get_routes(router: APIRouter, served: ServedModel) -> None:
    def describe(artifact: Artifact) -> dict[str, Any]:
        manifest = artifact.manifest
        details = {"format": "onnx", "family": manifest.family, "quantization_level": manifest.precision}
        own = {"name": manifest.name, "model": manifest.name, "digest": artifact.digest, "details": details}
        return own | {"size": artifact.weights_bytes}

    @router.get("/api/tags", response_model=dict[str, Any], summary="Ollama's list of models: those that run")
    async def models_of_ollama() -> Response:
        return json_response({"models": [describe(one.artifact) for one in served.group.values()]})

    @router.get("/api/version", response_model=dict[str, str], summary="The version of this service, for Ollama")
    async def version_for_ollama() -> Response:
        return json_response({"version": version("packbert")})
