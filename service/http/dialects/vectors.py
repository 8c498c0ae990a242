"""The routes of vectors of other servers: OpenAI (with Azure, Jina, Voyage, Mistral and infinity), Cohere, Ollama and
vLLM's /pooling. They ask for the same vectors in other words: each is a row and an example of its response.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from .fields import VllmFields, find_prompt_name, stated, truncation_fields
from .shapes import LISTED, USAGE, Explained, as_base64_text, like, listed, response_id, usage
from .spec import MESSAGE_ERROR, OPENAI_ERROR, TaskSpec

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
POOLING_RESPONSE = like(
    "PoolingResponse",
    "vLLM's response.",
    id="pooling-5f2c0f9e1d3a4b7c",
    **LISTED,
    data=[like("Pooled", index=0, object="pooling", data=Explained(NUMBERS, BASE64))],
)


@dataclass(frozen=True, slots=True)
class VectorDialect:
    """How requests of a dialect state their texts, and how it answers them."""

    texts: Callable[[Any], TextsOrIds]
    show: Callable[[Tasks, Any, Floats, TaskResult], Any]  # the response of [inputs, dimensions]
    truncates: bool | None = None  # by default
    unit_length: bool = True  # by default
    of_prompt: tuple[str, ...] = ()  # fields that name a prompt, or a kind of text

    async def task(self, tasks: Tasks, request: Any) -> Task:
        texts, fields = self.texts(request), self._fields(tasks, request)
        inputs = embed.read_inputs(tasks, texts, getattr(request, "tokenizer", None), fields)
        task = await embed.embed_texts(tasks, inputs, fields)
        return task.then(partial(self.show, tasks, request), accepts_empty=not isinstance(inputs, TokenIds))

    def _fields(self, tasks: Tasks, request: TruncationFields) -> EmbeddingFields:
        """The request in the fields of /embed. Raises as `truncation_fields`, `stated` and `find_prompt_name`."""
        fields = truncation_fields(tasks, request, truncates=self.truncates)
        normalize, by_default = stated(request, "normalize"), tasks.embedding.openai_normalize
        fields["normalize"] = by_default if self.unit_length and normalize is None else normalize
        fields["dimensions"] = stated(request, "dimensions") or None
        own = request if isinstance(request, EmbeddingFields) else EmbeddingFields()
        field = next((field for field in self.of_prompt if getattr(request, field)), None)
        if field is not None and own.prompt is None and own.prompt_name is None:
            fields["prompt_name"] = find_prompt_name(tasks, field, getattr(request, field))
        return own.model_copy(update=fields)


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


def _openai_texts(request: EmbeddingsRequest) -> TextsOrIds:
    """Raises Invalid for two different encodings, before the model runs."""
    stated(request, "encoding_format")
    return request.input


def _openai(tasks: Tasks, request: EmbeddingsRequest, vectors: Floats, result: TaskResult) -> LongObject:
    write, model = WRITERS[stated(request, "encoding_format") or "float"], tasks.manifest.name

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


def _cohere_texts(request: CohereEmbedRequest) -> list[str]:
    """Raises Invalid for both forms of texts, or none."""
    if (request.texts is None) == (request.inputs is None):
        state = "neither texts nor inputs is set" if request.texts is None else "texts and inputs are both set"
        raise Invalid(f"{state}: send one of them", code="texts")
    if request.texts is not None:
        return request.texts
    return [each.content[0].text for each in request.inputs or ()]


def _cohere(version: str, _: Tasks, request: CohereEmbedRequest, vectors: Floats, result: TaskResult) -> LongObject:
    types = dict.fromkeys(request.embedding_types or ("float",))
    by_type = LongObject({name: MadeList(WRITERS[name], vectors) for name in types})
    as_floats = version == "1" and not request.embedding_types
    return LongObject(
        id=response_id("embed"),
        response_type="embeddings_floats" if as_floats else "embeddings_by_type",
        embeddings=by_type["float"] if as_floats else by_type,
        texts=_cohere_texts(request),
        meta={"api_version": {"version": version}, "billed_units": {"input_tokens": result.tokens}},
    )


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


def _ollama(tasks: Tasks, _: OllamaRequest, vectors: Floats, result: TaskResult) -> LongObject:
    own = {"model": tasks.manifest.name, "total_duration": int(sum(result.stage_seconds) * 1e9), "load_duration": 0}
    return LongObject(own, prompt_eval_count=result.tokens, embeddings=vectors)


def _ollama_prompt(_: Tasks, __: OllamaPromptRequest, vectors: Floats, ___: TaskResult) -> dict[str, Any]:
    return {"embedding": vectors[0]}


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
    if (request.task or ("classify" if "labels" in tasks.manifest.heads else "embed")) == "embed":
        return await POOLING.task(tasks, request)
    request.refuse_vector_fields()
    fields = request.model_copy(update=truncation_fields(tasks, request))
    raw = request.use_activation is False
    task = await score_labels(tasks, as_list(request.input), fields, raw=raw)
    return task.then(partial(_pooled, tasks, request), accepts_empty=True)


def _pooled(tasks: Tasks, request: PoolingRequest, values: Floats, result: TaskResult) -> LongObject:
    """`values`: vectors, or scores of labels in float64."""
    write, rows = WRITERS[request.encoding_format or "float"], values.astype("<f4")

    def show(index: int, row: Floats) -> dict[str, Any]:
        return {"index": index, "object": "pooling", "data": write(row)}

    return listed(tasks, result, "pooling", MadeList(show, range(len(rows)), rows))


WRITERS: dict[str, Callable[[Floats], Any]] = {  # XOR with 0x80 adds 128 to a number of a byte, or takes it away
    "float": lambda row: row,
    "base64": as_base64_text,
    "int8": _to_int8,
    "uint8": lambda row: _to_int8(row).view(np.uint8) ^ 0x80,
    "binary": lambda row: (np.packbits(row > 0) ^ 0x80).view(np.int8),
    "ubinary": lambda row: np.packbits(row > 0),
}
OPENAI = VectorDialect(_openai_texts, _openai, of_prompt=("input_type", "task"))
POOLING = VectorDialect(lambda request: request.input, _pooled)
EMBEDDINGS = TaskSpec(
    "embeddings",
    OPENAI.task,
    EmbeddingsRequest,
    EMBEDDINGS_RESPONSE,
    "OpenAI's embeddings route; by default with the checkpoint's own pooling, scaled to unit length",
    error_shape=OPENAI_ERROR,
)
ROUTES = {
    "/v1/embeddings": EMBEDDINGS,
    "/embeddings": replace(EMBEDDINGS, operation="embeddings_of_infinity"),  # also a base URL without /v1
    "/openai/v1/embeddings": replace(EMBEDDINGS, operation="embeddings_of_azure_v1"),
    **{
        f"/v{version}/embed": TaskSpec(
            "embeddings",
            VectorDialect(_cohere_texts, partial(_cohere, version), truncates=True, of_prompt=("input_type",)).task,
            CohereEmbedRequest,
            COHERE_RESPONSE,
            "Cohere's embed route; by default with the checkpoint's own pooling, scaled to unit length",
            error_shape=MESSAGE_ERROR,
            operation=f"embeddings_of_cohere_v{version}",
        )
        for version in ("1", "2")
    },
    "/api/embed": TaskSpec(
        "embeddings",
        VectorDialect(lambda request: request.input, _ollama, truncates=True).task,
        OllamaRequest,
        OLLAMA_RESPONSE,
        "Vectors of unit length by default, in the format of Ollama",
        operation="embeddings_of_ollama",
    ),
    "/api/embeddings": TaskSpec(
        "embeddings",
        VectorDialect(lambda request: request.prompt, _ollama_prompt, truncates=True, unit_length=False).task,
        OllamaPromptRequest,
        like("OllamaPromptResponse", embedding=[0.1, -0.2, 0.3]),
        "A vector as the checkpoint gives it, in the format of Ollama",
        operation="prompt_of_ollama",
    ),
    "/pooling": TaskSpec(
        "pooling",
        _pool,
        PoolingRequest,
        POOLING_RESPONSE,
        "A vector or a classifier's scores for each text, in the format of vLLM",
        error_shape=OPENAI_ERROR,
    ),
}


def task_routes(model: ServedModel) -> dict[str, TaskSpec]:
    """Azure's route, whose path holds the model's name: another name is a 404."""
    path = f"/openai/deployments/{model.artifact.manifest.name}/embeddings"
    return {path: replace(EMBEDDINGS, operation="embeddings_of_azure")}
