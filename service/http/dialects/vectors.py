"""The routes of vectors of other servers: OpenAI (with Azure, Jina, Voyage, Mistral and infinity), Cohere, Ollama and
vLLM's /pooling. They ask for the same vectors in other words: each is a row and an example of its response.
"""

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import Invalid
from ...models import ServedModel
from ...tasks import embed
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import (
    NO_EFFECT,
    OWN_TOKENIZER,
    TOKEN_IDS,
    Body,
    ClientFields,
    EmbeddingFields,
    FailFastList,
    ModelField,
    StringOrList,
    TextsOrIds,
    TruncationFields,
    as_list,
)
from ...tasks.pairs import score_labels
from ...tasks.results import LongObject, MadeList
from ...tokenization.encoding import TokenIds
from ..responses import Floats
from .fields import LISTED, USAGE, VllmFields, find_prompt_name, listed, response_id, stated, truncation_fields, usage
from .spec import MESSAGE_ERROR, OPENAI_ERROR, Explained, TaskSpec, like

NUMBERS = ([0.1, -0.2, 0.3], "zczMPQ==")
BASE64 = "base64: of little-endian float32"
EMBEDDINGS_RESPONSE = like(
    "EmbeddingsResponse",
    "OpenAI's response.",
    object="list",
    id=Explained("embd-sample", "of Mistral and vLLM: of the model, so that equal requests have equal answers"),
    data=[like("Embedding", object="embedding", embedding=Explained(NUMBERS, BASE64), index=0)],
    model="sample",
    usage=USAGE,
)
EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
COHERE_RESPONSE = like(
    "CohereEmbedResponse",
    id="embed-5f2c0f9e1d3a4b7c",
    response_type=Explained("embeddings_by_type", "in version 1 without embedding_types: embeddings_floats"),
    embeddings=Explained(
        (dict[EmbeddingType, list[Any]], list[list[float]]), "by type; in version 1 without embedding_types a list"
    ),
    texts=["my dog is hairy"],
    meta={"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}},
)
OLLAMA_RESPONSE = like(
    "OllamaResponse",
    model="sample",
    embeddings=[[0.1, -0.2, 0.3]],
    prompt_eval_count=Explained(7, "tokens"),
    total_duration=Explained(9_000_000, "nanoseconds"),
    load_duration=Explained(0, "0: the model is loaded"),
)
PROMPT_RESPONSE = like("OllamaPromptResponse", embedding=[0.1, -0.2, 0.3])
POOLING_RESPONSE = like(
    "PoolingResponse",
    "vLLM's response.",
    id="pooling-5f2c0f9e1d3a4b7c",
    **LISTED,
    data=[like("Pooled", index=0, object="pooling", data=Explained(NUMBERS, BASE64))],
)
Show = Callable[[Floats, TaskResult], Any]  # the response of [inputs, dimensions]


async def embed_for(
    tasks: Tasks,
    request: TruncationFields,
    texts: TextsOrIds,
    show: Show,
    *,
    truncates: bool | None = None,
    unit_length: bool = True,
    of_prompt: tuple[str, ...] = (),
) -> Task:
    """The vectors of the texts, as `show` writes them.

    The dialect says whether it truncates and has unit length by default, and which fields name a prompt or a kind of
    text. Raises as `truncation_fields`, `stated`, `find_prompt_name` and `embed.read_inputs`.
    """
    fields = truncation_fields(tasks, request, truncates=truncates)
    normalize, by_default = stated(request, "normalize"), tasks.embedding.openai_normalize
    fields["normalize"] = by_default if unit_length and normalize is None else normalize
    fields["dimensions"] = stated(request, "dimensions") or None
    own = request if isinstance(request, EmbeddingFields) else EmbeddingFields()
    field = next((field for field in of_prompt if getattr(request, field)), None)
    if field is not None and own.prompt is None and own.prompt_name is None:
        fields["prompt_name"] = find_prompt_name(tasks, field, getattr(request, field))
    own = own.model_copy(update=fields)
    inputs = embed.read_inputs(tasks, texts, getattr(request, "tokenizer", None), own)
    task = await embed.embed_texts(tasks, inputs, own)
    return task.then(show, accepts_empty=not isinstance(inputs, TokenIds))


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


async def _openai(tasks: Tasks, request: EmbeddingsRequest) -> Task:
    """OpenAI's embeddings route; by default with the checkpoint's own pooling, scaled to unit length."""
    show = partial(show_for_openai, tasks.manifest.name, stated(request, "encoding_format"))
    return await embed_for(tasks, request, request.input, show, of_prompt=("input_type", "task"))


def show_for_openai(model: str, encoding: str | None, vectors: Floats, result: TaskResult) -> LongObject:
    write = WRITERS[encoding or "float"]

    def show(row: Floats, index: int) -> dict[str, Any]:
        return {"object": "embedding", "embedding": write(row), "index": index}

    data = MadeList(show, vectors, range(len(vectors)))
    return LongObject(object="list", id=f"embd-{model}", data=data, model=model, usage=usage(result.tokens))


class TextContent(Body):
    type: Literal["text"]
    text: str


class EmbedInput(Body):
    content: FailFastList[TextContent] = Field(min_length=1, max_length=1, description="one text")


class CohereEmbedRequest(ClientFields, TruncationFields):
    texts: FailFastList[str] | None = Field(None, examples=[["my dog is hairy"]])
    inputs: FailFastList[EmbedInput] | None = Field(None, description="of version 2, in the place of texts")
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = Field(
        None, description="of queries and documents: the checkpoint's prompt, else its default; of others: their prompt"
    )
    embedding_types: FailFastList[EmbeddingType] | None = Field(
        None,
        description="default float; base64: of little-endian float32; int8: each vector scaled so that its largest "
        "number is 127, for cosines; uint8: that and 128; ubinary: the signs, 8 in a number; binary: that less 128",
    )
    output_dimension: int | None = Field(None, ge=1, description="keep the first n numbers, before normalizing")
    priority: int | None = Field(None, description=NO_EFFECT)


async def _cohere(version: str, tasks: Tasks, request: CohereEmbedRequest) -> Task:
    """Cohere's embed route; by default with the checkpoint's own pooling, scaled to unit length."""
    if (request.texts is None) == (request.inputs is None):
        state = "neither texts nor inputs is set" if request.texts is None else "texts and inputs are both set"
        raise Invalid(f"{state}: send one of them", code="texts")
    texts = [each.content[0].text for each in request.inputs or ()] if request.texts is None else request.texts
    types = dict.fromkeys(request.embedding_types or ("float",))
    as_floats = version == "1" and not request.embedding_types

    def show(vectors: Floats, result: TaskResult) -> LongObject:
        by_type = LongObject({name: MadeList(WRITERS[name], vectors) for name in types})
        return LongObject(
            id=response_id("embed"),
            response_type="embeddings_floats" if as_floats else "embeddings_by_type",
            embeddings=by_type["float"] if as_floats else by_type,
            texts=texts,
            meta={"api_version": {"version": version}, "billed_units": {"input_tokens": result.tokens}},
        )

    return await embed_for(tasks, request, texts, show, truncates=True, of_prompt=("input_type",))


def _to_int8(row: Floats) -> NDArray[np.int8]:
    numbers = row.astype(np.float32)
    return np.asarray(np.rint(numbers * (127 / max(float(np.abs(numbers).max()), 1e-12))), np.int8)


class OllamaFields(ModelField, TruncationFields):
    options: dict[str, Any] | None = Field(None, description=NO_EFFECT)
    keep_alive: str | float | None = Field(None, description=NO_EFFECT)


class OllamaRequest(OllamaFields):
    input: StringOrList = Field(examples=["my dog is hairy"])
    dimensions: int | None = Field(None, ge=1, description="keep the first n numbers, before normalizing")


class OllamaPromptRequest(OllamaFields):
    prompt: str = Field(examples=["my dog is hairy"])


async def _ollama(tasks: Tasks, request: OllamaRequest) -> Task:
    """Vectors of unit length by default, in the format of Ollama."""

    def show(vectors: Floats, result: TaskResult) -> LongObject:
        own = {"model": tasks.manifest.name, "total_duration": int(sum(result.stage_seconds) * 1e9), "load_duration": 0}
        return LongObject(own, prompt_eval_count=result.tokens, embeddings=vectors)

    return await embed_for(tasks, request, request.input, show, truncates=True)


async def _ollama_prompt(tasks: Tasks, request: OllamaPromptRequest) -> Task:
    """A vector as the checkpoint gives it, in the format of Ollama."""
    return await embed_for(
        tasks, request, request.prompt, lambda vectors, _: {"embedding": vectors[0]}, truncates=True, unit_length=False
    )


class PoolingRequest(ModelField, EmbeddingFields, VllmFields):
    """vLLM's request for a vector or for a classifier's scores; vectors have unit length unless it says otherwise."""

    input: StringOrList = Field(examples=["my dog is hairy"])
    user: str | None = Field(None, description=NO_EFFECT)
    task: Literal["embed", "classify"] | None = Field(
        None, description="null: classify where the model has a classifier of texts, else embed"
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=0, description="keep the first n numbers, before normalizing; 0: all")


async def _pool(tasks: Tasks, request: PoolingRequest) -> Task:
    """A vector or a classifier's scores for each text, in the format of vLLM."""
    write = WRITERS[request.encoding_format or "float"]

    def show_row(index: int, row: Floats) -> dict[str, Any]:
        return {"index": index, "object": "pooling", "data": write(row)}

    def show(values: Floats, result: TaskResult) -> LongObject:
        rows = values.astype("<f4")  # of scores in float64
        return listed(tasks, result, "pooling", MadeList(show_row, range(len(rows)), rows))

    if (request.task or ("classify" if "labels" in tasks.manifest.heads else "embed")) == "embed":
        return await embed_for(tasks, request, request.input, show)
    request.refuse_vector_fields()
    fields, raw = request.model_copy(update=truncation_fields(tasks, request)), request.use_activation is False
    return (await score_labels(tasks, as_list(request.input), fields, raw=raw)).then(show, accepts_empty=True)


WRITERS: dict[str, Callable[[Floats], Any]] = {  # XOR with 0x80 adds 128 to a number of a byte, or takes it away
    "float": lambda row: row,
    "base64": lambda row: base64.b64encode(row.astype("<f4").tobytes()).decode(),
    "int8": _to_int8,
    "uint8": lambda row: _to_int8(row).view(np.uint8) ^ 0x80,
    "binary": lambda row: (np.packbits(row > 0) ^ 0x80).view(np.int8),
    "ubinary": lambda row: np.packbits(row > 0),
}
EMBEDDINGS = TaskSpec("embeddings", _openai, EMBEDDINGS_RESPONSE, error_shape=OPENAI_ERROR)
COHERE = TaskSpec("embeddings", partial(_cohere, "2"), COHERE_RESPONSE, error_shape=MESSAGE_ERROR)
ROUTES = {
    "/v1/embeddings": EMBEDDINGS,
    "/embeddings": replace(EMBEDDINGS, operation="embeddings_of_infinity"),  # also a base URL without /v1
    "/openai/v1/embeddings": replace(EMBEDDINGS, operation="embeddings_of_azure_v1"),
    "/v1/embed": replace(COHERE, task=partial(_cohere, "1"), operation="embeddings_of_cohere_v1"),
    "/v2/embed": replace(COHERE, operation="embeddings_of_cohere_v2"),
    "/api/embed": TaskSpec("embeddings", _ollama, OLLAMA_RESPONSE, operation="embeddings_of_ollama"),
    "/api/embeddings": TaskSpec("embeddings", _ollama_prompt, PROMPT_RESPONSE, operation="prompt_of_ollama"),
    "/pooling": TaskSpec("pooling", _pool, POOLING_RESPONSE, error_shape=OPENAI_ERROR),
}


def task_routes(model: ServedModel) -> dict[str, TaskSpec]:
    """Azure's route, whose path holds the model's name: another name is a 404."""
    path = f"/openai/deployments/{model.artifact.manifest.name}/embeddings"
    return {path: replace(EMBEDDINGS, operation="embeddings_of_azure")}
