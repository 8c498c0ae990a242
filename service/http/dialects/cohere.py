"""Cohere's embed routes: vectors in one or more number formats. Its rerank routes are in `rerank`."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ...errors import Invalid
from ...tasks.embed import embed_texts
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import NO_EFFECT, Body, ClientFields, EmbeddingFields, FailFastList, TruncationFields
from ...tasks.results import LongObject, MadeList
from ..responses import Floats
from .openai import as_base64_text, find_prompt_name, response_id
from .rerank import MESSAGE_ERROR
from .spec import TaskSpec

EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


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


class CohereEmbedResponse(BaseModel):
    """`embeddings` by type; in version 1 without embedding_types a list of vectors."""

    id: str = Field(examples=["embed-5f2c0f9e1d3a4b7c"])
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: dict[EmbeddingType, list[list[float]] | list[list[int]] | list[str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any] = Field(examples=[{"billed_units": {"input_tokens": 7}}])


def _to_int8(row: Floats) -> NDArray[np.int8]:
    numbers = row.astype(np.float32)
    return np.asarray(np.rint(numbers * (127 / max(float(np.abs(numbers).max()), 1e-12))), np.int8)


WRITERS: dict[str, Callable[[Floats], Any]] = {  # XOR with 0x80 adds 128 to a number of a byte, or takes it away
    "float": lambda row: row,
    "base64": as_base64_text,
    "int8": _to_int8,
    "uint8": lambda row: _to_int8(row).view(np.uint8) ^ 0x80,
    "binary": lambda row: (np.packbits(row > 0) ^ 0x80).view(np.int8),
    "ubinary": lambda row: np.packbits(row > 0),
}


async def _embed(tasks: Tasks, request: CohereEmbedRequest, *, version: str) -> Task:
    texts = _texts(request)
    fields = EmbeddingFields(
        **request.how_texts_are_read(truncates=True),
        normalize=tasks.embedding.openai_normalize,
        dimensions=request.output_dimension,
        prompt_name=find_prompt_name(tasks, "input_type", request.input_type),
    )
    types = dict.fromkeys(request.embedding_types or ("float",))
    as_floats = version == "1" and not request.embedding_types

    def show(vectors: Floats, result: TaskResult) -> LongObject:
        by_type = LongObject({one: MadeList(WRITERS[one], vectors) for one in types})
        return LongObject(
            id=response_id("embed"),
            response_type="embeddings_floats" if as_floats else "embeddings_by_type",
            embeddings=by_type["float"] if as_floats else by_type,
            texts=texts,
            meta={"api_version": {"version": version}, "billed_units": {"input_tokens": result.tokens}},
        )

    return (await embed_texts(tasks, texts, fields, accepts_empty=True)).then(show)


def _texts(request: CohereEmbedRequest) -> list[str]:
    """Raises Invalid for both forms of texts, or none."""
    if (request.texts is None) == (request.inputs is None):
        state = "neither texts nor inputs is set" if request.texts is None else "texts and inputs are both set"
        raise Invalid(f"{state}: send one of them", code="texts")
    if request.texts is not None:
        return request.texts
    return [one.content[0].text for one in request.inputs or ()]


ROUTES = {
    f"/v{version}/embed": TaskSpec(
        "embeddings",
        partial(_embed, version=version),
        CohereEmbedRequest,
        CohereEmbedResponse,
        "Cohere's embed route; by default with the checkpoint's own pooling, scaled to unit length",
        error_shape=MESSAGE_ERROR,
        operation=f"embeddings_of_cohere_v{version}",
    )
    for version in ("1", "2")
}
