"""OpenAI's API: embeddings and models, with the fields that clients of Jina, Voyage, infinity and vLLM add."""

import base64
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from ...errors import Invalid, NotFound
from ...models import ServedModel
from ...tasks import embed
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import (
    NO_EFFECT,
    OWN_TOKENIZER,
    TOKEN_IDS,
    Body,
    EmbeddingFields,
    ModelField,
    TextsOrIds,
    TruncationFields,
)
from ...tasks.results import LongObject, MadeList
from ...tokenization.encoding import Direction, TokenIds
from ..responses import Floats, json_response
from .spec import OPENAI_ERROR, TaskSpec


class VllmFields(TruncationFields):
    """What clients of vLLM add to any request; a value that would change the answer otherwise is refused."""

    truncate_prompt_tokens: int | None = Field(None, description="-1, or the model's limit and more: as truncate: true")
    truncation_side: Direction | None = Field(None, description="as `truncation_direction`")
    use_activation: bool | None = Field(None, description="of vectors: as `normalize`; of labels: false gives logits")
    add_special_tokens: Literal[True] | None = Field(None, description=NO_EFFECT)
    padding: Literal["do_not_pad", "max_length"] | None = Field(None, description=NO_EFFECT)
    embed_dtype: Literal["float32"] | None = Field(None, description=NO_EFFECT)
    endianness: Literal["native", "little"] | None = Field(None, description=NO_EFFECT)
    priority: int | None = Field(None, description=NO_EFFECT)
    request_id: str | None = Field(None, description=NO_EFFECT)
    cache_salt: str | None = Field(None, description=NO_EFFECT)


class EmbeddingsRequest(ModelField, EmbeddingFields, VllmFields):
    """OpenAI's request; the fields of /embed are extensions. Without `normalize`, vectors have unit length."""

    input: TextsOrIds = Field(examples=["my dog is hairy"], description=TOKEN_IDS)
    user: str | None = Field(None, description=NO_EFFECT)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=0, description="keep the first n numbers, before normalizing; 0: all")
    tokenizer: str | None = Field(None, description=OWN_TOKENIZER)
    modality: Literal["text"] | None = Field(None, description="of infinity; " + NO_EFFECT)
    input_type: str | None = Field(None, description="of Voyage: the prompt of this name, if there are prompts")
    task: str | None = Field(None, description="of Jina: the prompt of this name, if there are prompts")
    normalized: bool | None = Field(None, description="of Jina: as `normalize`")
    embedding_type: Literal["float", "base64"] | None = Field(None, description="of Jina: as `encoding_format`")
    encoding_type: Literal["float", "base64"] | None = Field(None, description="of LlamaIndex: as `encoding_format`")
    truncation: bool | None = Field(None, description="of Voyage: as `truncate`")
    output_dimension: int | None = Field(None, ge=1, description="of Voyage: as `dimensions`")
    output_dtype: Literal["float"] | None = Field(None, description="of Voyage; " + NO_EFFECT)
    late_chunking: Literal[False] | None = Field(None, description="of Jina; " + NO_EFFECT)


DOCUMENT, QUERY = ("document", "passage", "corpus"), ("query",)  # names of their prompts, in the order of preference
KINDS = {  # what Voyage, Jina and Cohere call them
    **dict.fromkeys(("query", "retrieval.query", "search_query"), QUERY),
    **dict.fromkeys(("document", "passage", "retrieval.passage", "search_document"), DOCUMENT),
    "text": (),  # neither
}
OWN_FIELDS = {*EmbeddingFields.model_fields, "input", "model", "user", "encoding_format", "tokenizer"}


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
    id: str = Field(description="of Mistral and vLLM: of the model, so that equal requests have equal answers")
    data: list[Embedding]
    model: str = Field(examples=["sample"])
    usage: Usage


class Model(BaseModel):
    id: str = Field(examples=["sample"])
    object: Literal["model"]
    created: int = Field(description="when this service started, in seconds since 1970", examples=[1790000000])
    owned_by: str = Field(examples=["packbert"])
    root: str = Field(description="of vLLM: the same id", examples=["sample"])
    max_model_len: int = Field(description="of vLLM: tokens in one text", examples=[512])
    type: Literal["base"] = Field(description="of Mistral")
    capabilities: dict[str, bool] = Field(description="of Mistral: none, since the service writes no text")


class ModelsResponse(BaseModel):
    """OpenAI's list of models: those that this service runs."""

    object: Literal["list"]
    data: list[Model]


async def _embeddings(tasks: Tasks, request: EmbeddingsRequest) -> Task:
    fields = _embedding_fields(tasks, request)
    inputs = embed.read_inputs(tasks, request.input, request.tokenizer, fields)
    as_base64 = agreed(request, "encoding_format", "embedding_type", "encoding_type") == "base64"
    task = await embed.embed_texts(tasks, inputs, fields, accepts_empty=not isinstance(inputs, TokenIds))
    name = tasks.manifest.name
    return task.then(lambda vectors, result: build_response(vectors, name, result.tokens, as_base64=as_base64))


def _embedding_fields(tasks: Tasks, request: EmbeddingsRequest) -> EmbeddingFields:
    """The request in the fields of /embed."""
    fields = {} if OWN_FIELDS.issuperset(request.model_fields_set) else _fields_of_other_clients(tasks, request)
    normalize = fields.get("normalize", request.normalize)
    fields["normalize"] = tasks.embedding.openai_normalize if normalize is None else normalize
    fields["dimensions"] = fields.get("dimensions", request.dimensions) or None
    return request.model_copy(update=fields)


def _fields_of_other_clients(tasks: Tasks, request: EmbeddingsRequest) -> dict[str, Any]:
    """Fields of /embed, from those that stand for them."""
    fields = truncation_fields(tasks, request, "truncation") | {
        "dimensions": agreed(request, "dimensions", "output_dimension"),
        "normalize": agreed(request, "normalize", "normalized", "use_activation"),
    }
    if request.prompt is None and request.prompt_name is None:
        field = "input_type" if request.input_type else "task"
        fields["prompt_name"] = find_prompt_name(tasks, field, request.input_type or request.task)
    return fields


def find_prompt_name(tasks: Tasks, field: str, name: str | None) -> str | None:
    """The checkpoint's prompt for what `field` calls `name`; None for the default, as where there are no prompts.

    Queries and documents without a prompt of their own get the default, as in sentence-transformers. Raises Invalid for
    another name that no prompt has.
    """
    prompts = tasks.manifest.embedding.prompts
    if not name or not prompts or name in prompts:
        return name if name in prompts else None
    if (kind := KINDS.get(name)) is None:
        message = f"{field} is {name!r}; the prompts of this model are {', '.join(prompts)}"
        raise Invalid(f"{message}: send one of them, or `prompt` with a text", code="prompt")
    found = [one for one in kind if one in prompts]
    return max(found, key=lambda one: bool(prompts[one]), default=None)  # sentence-transformers adds `document`, empty


def agreed(request: Body, *names: str) -> Any:
    """The value of the request's fields `names`, which mean the same; None where none is set.

    Raises Invalid where two differ.
    """
    given = [name for name in names if name in request.model_fields_set]  # one has a default
    stated = {name: value for name in given if (value := getattr(request, name)) is not None}
    if len({*stated.values()}) > 1:
        both = " and ".join(f"{name} is {str(value).lower()}" for name, value in stated.items())
        raise Invalid(f"{both}, which mean the same: send one of them", code=names[0])
    return next(iter(stated.values()), None)


def truncation_fields(tasks: Tasks, request: VllmFields, *more: str) -> dict[str, Any]:
    """The truncation that vLLM's fields ask for, and those that are named.

    Raises Invalid for another limit than the model's, and as `agreed`.
    """
    fields = {"truncate": agreed(request, "truncate", *more)}
    if (side := agreed(request, "truncation_side", "truncation_direction")) is not None:
        fields["truncation_direction"] = side
    if (limit := request.truncate_prompt_tokens) is not None:
        most = tasks.manifest.max_tokens
        if limit != -1 and limit < most:
            message = f"truncate_prompt_tokens is {limit}; this service truncates only at the model's limit of {most}"
            raise Invalid(f"{message} tokens: send -1, or cut the texts", code="truncate")
        if fields["truncate"] in (False, "NONE"):
            raise Invalid(
                f"truncate is {fields['truncate']} and truncate_prompt_tokens {limit}: send one of them",
                code="truncate",
            )
        fields["truncate"] = fields["truncate"] or True
    return fields


def build_response(vectors: Floats, model: str, tokens: int, *, as_base64: bool) -> dict[str, Any]:
    """OpenAI's response for [inputs, dimensions]; base64 holds little-endian float32."""

    def show(row: Floats, index: int) -> dict[str, Any]:
        return {"object": "embedding", "embedding": as_base64_text(row) if as_base64 else row, "index": index}

    data = MadeList(show, vectors, range(len(vectors)))
    return LongObject(object="list", id=f"embd-{model}", data=data, model=model, usage=usage(tokens))


def as_base64_text(row: Floats) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def listed(tasks: Tasks, result: TaskResult, kind: str, data: Sequence[Any], *, named: str = "list") -> LongObject:
    """vLLM's and infinity's response, whose `object` is `named`."""
    own = {"id": response_id(kind), "created": int(time.time()), "object": named}
    return LongObject(own, model=tasks.manifest.name, data=data, usage=usage(result.tokens))


def response_id(kind: str) -> str:
    return f"{kind}-{random.getrandbits(64):016x}"  # names the response, no secret


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


EMBEDDINGS = TaskSpec(
    "embeddings",
    _embeddings,
    EmbeddingsRequest,
    EmbeddingsResponse,
    "OpenAI's embeddings route; by default with the checkpoint's own pooling, scaled to unit length",
    error_shape=OPENAI_ERROR,
)
ROUTES = {
    "/v1/embeddings": EMBEDDINGS,
    "/embeddings": replace(EMBEDDINGS, operation="embeddings_of_infinity"),  # also a base URL without /v1
    "/openai/v1/embeddings": replace(EMBEDDINGS, operation="embeddings_of_azure_v1"),
}


def task_routes(model: ServedModel) -> dict[str, TaskSpec]:
    """Azure's, by a path with the model's name: another name is a 404."""
    path = f"/openai/deployments/{model.artifact.manifest.name}/embeddings"
    return {path: replace(EMBEDDINGS, operation="embeddings_of_azure")}


def add_get_routes(router: APIRouter, model: ServedModel) -> None:
    started = int(time.time())

    def describe(name: str) -> dict[str, Any]:
        most = model.group[name].artifact.manifest.max_tokens
        own = {"id": name, "object": "model", "created": started, "owned_by": "packbert"}
        return own | {"root": name, "max_model_len": most, "type": "base", "capabilities": {}}

    @router.get("/v1/models", response_model=ModelsResponse, summary="OpenAI's list of models: those that run")
    async def models() -> Response:
        return json_response({"object": "list", "data": [describe(name) for name in model.group]})

    @router.get("/v1/models/{name:path}", response_model=Model, summary="OpenAI's description of a model")
    async def retrieve_model(name: str) -> Response:
        if name not in model.group:
            models = ", ".join(model.group)
            raise NotFound(f"there is no model {name!r}: this server runs {models}", code="model_not_found")
        return json_response(describe(name))
