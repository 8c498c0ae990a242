"""OpenAI's embeddings API."""

import base64
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from service.http.dialects.errors import OPENAI_ERROR
from service.http.dialects.spec import TaskSpec
from service.http.responses import Floats, json_bytes
from service.tasks import embed
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import EmbeddingFields, EmbedRequest, StringOrList


class EmbeddingsRequest(EmbeddingFields):
    """OpenAI's request; the fields of /embed are extensions. Without `normalize`, vectors have unit length."""

    input: StringOrList = Field(examples=["my dog is hairy"])
    model: str | None = None
    user: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


class Embedding(BaseModel):
    object: Literal["embedding"]
    embedding: list[float] | str = Field(description="base64: of little-endian float32", examples=[[0.1, -0.2, 0.3]])
    index: int = Field(examples=[0])


class Usage(BaseModel):
    prompt_tokens: int = Field(examples=[7])
    total_tokens: int = Field(examples=[7])


class EmbeddingsResponse(BaseModel):
    """OpenAI's response."""

    object: Literal["list"]
    data: list[Embedding]
    model: str = Field(examples=["sample"])
    usage: Usage


async def _embeddings(tasks: Tasks, request: EmbeddingsRequest, *, timeout_seconds: float) -> TaskResult:
    fields = request.model_dump(include=set(EmbeddingFields.model_fields)) | {"inputs": request.input}
    if request.normalize is None:
        fields["normalize"] = tasks.embedding.openai_normalize
    result = await embed.embed(tasks, EmbedRequest.model_validate(fields), timeout_seconds=timeout_seconds)
    as_base64 = request.encoding_format == "base64"
    result.value = await build_response(result.value, tasks.manifest.name, result.tokens, as_base64=as_base64)
    return result


async def build_response(vectors: Floats, model: str, tokens: int, *, as_base64: bool) -> dict[str, Any]:
    """OpenAI's response for [inputs, dimensions], for `json_bytes`; base64 holds little-endian float32."""
    rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors] if as_base64 else list(vectors)
    data = await json_bytes([{"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(rows)])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": orjson.Fragment(data), "model": model, "usage": usage}


ROUTES = {
    "/v1/embeddings": TaskSpec(
        "embeddings",
        _embeddings,
        EmbeddingsRequest,
        EmbeddingsResponse,
        "OpenAI's embeddings route; by default with the checkpoint's own pooling, scaled to unit length",
        error_shape=OPENAI_ERROR,
    ),
}
