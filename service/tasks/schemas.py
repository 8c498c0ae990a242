"""The request and answer bodies, with their examples. Requests are checked strictly: an unknown field is an error, not a shrug."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")
FailFastList = Annotated[
    list[T], Field(fail_fast=True)
]  # ends at its first fault: a list of millions may have millions of them
Pooling = Literal["cls", "pooler", "mean"]
Lowered = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)  # TEI writes "Right"
Side = Annotated[Literal["right", "left"], Lowered]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TruncationFields(Body):
    truncate: bool | None = Field(None, description="cut what is too long; null: as the server is set (BERT_TRUNCATE)")
    truncation_direction: Side = Field("right", description="the side that is cut away")


class EmbedRequest(TruncationFields):
    inputs: str | FailFastList[str] = Field(examples=["my dog is hairy"])
    pooling: Pooling = Field(
        "cls", description="cls: raw last-layer [CLS]; pooler: tanh(W h[CLS] + b); mean: over all tokens"
    )
    normalize: bool = Field(False, description="to unit length")
    dimensions: int | None = Field(None, ge=1, description="keep the first n numbers (before normalizing)")
    prompt_name: None = Field(None, description="accepted from TEI clients when null")


class FillMaskParameters(Body):
    top_k: int | None = Field(None, ge=0)
    targets: str | FailFastList[str] | None = None


class FillMaskRequest(TruncationFields):
    inputs: str | FailFastList[str] = Field(examples=["Paris is the capital of [MASK]."])
    parameters: FillMaskParameters | None = Field(
        None, description="as in the Hugging Face API; the same keys at the top level do the same"
    )
    top_k: int | None = Field(None, ge=0, description="candidates per mask (default 5)")
    targets: str | FailFastList[str] | None = Field(
        None, description="score these words only, with their share of the whole vocabulary"
    )


class Pair(Body):
    text: str
    text_pair: str


class NspRequest(TruncationFields):
    inputs: Pair | FailFastList[Pair | FailFastList[str]] = Field(
        examples=[{"text": "I like tea.", "text_pair": "It is warm."}], description="one pair, or a list of pairs"
    )


class EmbeddingsRequest(TruncationFields):
    """OpenAI's request; `pooling`, `normalize` and what cuts long texts are ours."""

    input: str | FailFastList[str] = Field(examples=["my dog is hairy"])
    model: str | None = None
    user: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    pooling: Pooling | None = Field(
        None, description="null: as the checkpoint's sentence-transformers modules say, [CLS] without them (/info)"
    )
    normalize: bool = True


class PredictRequest(TruncationFields):
    inputs: str | Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=["I like tea."],
        description='a text; ["a", "b"] is one pair; [["a"], ["a", "b"]] is a batch of texts and pairs',
    )
    raw_scores: bool = Field(False, description="the logits themselves")


class TagParameters(Body):
    aggregation_strategy: Literal["none", "simple"] | None = None


class TagRequest(TruncationFields):
    inputs: str | FailFastList[str] = Field(examples=["My name is Clara and I live in Berkeley."])
    parameters: TagParameters | None = Field(
        None, description="as in the Hugging Face API; the same key at the top level does the same"
    )
    aggregation_strategy: Literal["none", "simple"] | None = Field(
        None, description="none (default): single tokens; simple: groups"
    )


class Label(BaseModel):
    label: str = Field(examples=["positive"])
    score: float = Field(examples=[0.93])


class Tag(BaseModel):
    entity: str = Field("", description="with aggregation_strategy none", examples=["B-PER"])
    entity_group: str = Field("", description="with aggregation_strategy simple", examples=["PER"])
    score: float = Field(examples=[0.99])
    index: int = Field(0, description="of the token, with aggregation_strategy none", examples=[4])
    word: str = Field(examples=["clara"])
    start: int = Field(description="character of the text", examples=[11])
    end: int = Field(examples=[16])


class Candidate(BaseModel):
    score: float = Field(description="softmax over the whole vocabulary at the mask", examples=[0.41])
    token: int = Field(examples=[2605])
    token_str: str = Field(examples=["france"])
    sequence: str = Field(examples=["paris is the capital of france."])


class PairScore(BaseModel):
    """Under the two names of /info's pair_labels: is_next and not_next, or in_order and swapped where the head was trained on sentence order."""

    label: str = Field(examples=["is_next"])
    is_next: float = Field(examples=[0.98])
    not_next: float = Field(examples=[0.02])


class ErrorBody(BaseModel):
    error: str = Field(
        examples=["input has 613 tokens; this model takes at most 512: shorten it or send truncate: true"]
    )
    code: str = Field(examples=["too_long"])
    index: int | None = Field(None, description="of the input that is to blame", examples=[3])
    request_id: str = Field(examples=["5f2c0f9e1d3a4b7c"])


class Embedding(BaseModel):
    object: Literal["embedding"]
    embedding: list[float] | str = Field(
        description="base64 of little-endian float32 where encoding_format says so", examples=[[0.1, -0.2, 0.3]]
    )
    index: int = Field(examples=[0])


class Usage(BaseModel):
    prompt_tokens: int = Field(examples=[7])
    total_tokens: int = Field(examples=[7])


class Embeddings(BaseModel):
    """OpenAI's answer."""

    object: Literal["list"]
    data: list[Embedding]
    model: str = Field(examples=["sample"])
    usage: Usage


class OpenAIError(BaseModel):
    message: str = Field(
        examples=["input has 613 tokens; this model takes at most 512: shorten it or send truncate: true"]
    )
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="the input that is to blame", examples=["input.3"])
    code: str = Field(examples=["too_long"])


class OpenAIErrorBody(BaseModel):
    error: OpenAIError


class Status(BaseModel):
    status: str = Field(examples=["ready"])
