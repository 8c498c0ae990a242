"""Request and response bodies, with examples. Requests are validated strictly: an unknown field is an error."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.tokenization.encoding import Direction

T = TypeVar("T")
FailFastList = Annotated[list[T], Field(fail_fast=True)]  # validation stops at the first of possibly millions of errors
StringOrList = str | FailFastList[str]
Pooling = Literal["cls", "pooler", "mean", "sentence"]
Lowercase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)  # TEI writes "Right"
Strategy = Literal["none", "simple", "first", "average", "max"]
POOLINGS = (
    "cls: hidden state of [CLS]; pooler: tanh(W cls + b); mean: over all tokens; sentence: all modules of a "
    "sentence-transformers checkpoint before its last Normalize; null: the default in /info"
)
PARAMETERS = "as in the Hugging Face API; the same keys are accepted at the top level"
TOO_LONG = "input has 613 tokens; this model takes at most 512: shorten it or send truncate: true"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TruncationFields(Body):
    truncate: bool | None = Field(None, description="cut inputs that are too long; null: the server's BERT_TRUNCATE")
    truncation_direction: Annotated[Direction, Lowercase] = Field("right", description="the side that is cut off")


class EmbeddingFields(TruncationFields):
    pooling: Pooling | None = Field(None, description=POOLINGS)
    normalize: bool | None = Field(None, description="scale each vector to unit length; null: the default in /info")
    dimensions: int | None = Field(None, ge=1, description="keep the first n numbers, before normalizing")
    prompt_name: str | None = Field(
        None, description="one of the checkpoint's prompts, put before each text; null: its default prompt (/info)"
    )
    prompt: str | None = Field(None, description='a prompt in full; "": none', examples=["query: "])


class EmbedRequest(EmbeddingFields):
    inputs: StringOrList = Field(examples=["my dog is hairy"])


class FillMaskParameters(Body):
    top_k: int | None = Field(None, ge=0)
    targets: StringOrList | None = None
    first_piece: bool | None = None


class FillMaskRequest(TruncationFields):
    inputs: StringOrList = Field(examples=["Paris is the capital of [MASK]."])
    parameters: FillMaskParameters | None = Field(None, description=PARAMETERS)
    top_k: int | None = Field(None, ge=0, description="candidates per mask (default 5)")
    targets: StringOrList | None = Field(
        None, description="score only these words, each one piece; probabilities are over the vocabulary"
    )
    first_piece: bool | None = Field(
        None, description="true: score the first piece of a target that has several, as transformers does"
    )


class Pair(Body):
    text: str
    text_pair: str


class NspRequest(TruncationFields):
    inputs: Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=[{"text": "I like tea.", "text_pair": "It is warm."}],
        description='one pair, also as ["a", "b"]; or a list of pairs, also as [["a", "b"], ["c", "d"]]',
    )


class PredictRequest(TruncationFields):
    inputs: str | Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=["I like tea."],
        description='a text; ["a", "b"] is one pair; [["a"], ["a", "b"]] is a batch of texts and pairs',
    )
    raw_scores: bool = Field(False, description="return logits instead of probabilities")


class TagParameters(Body):
    aggregation_strategy: Strategy | None = None
    ignore_labels: FailFastList[str] | None = None


class TagRequest(TruncationFields):
    inputs: StringOrList = Field(examples=["My name is Clara and I live in Berkeley."])
    parameters: TagParameters | None = Field(None, description=PARAMETERS)
    aggregation_strategy: Strategy | None = Field(
        None,
        description="none (default): single tokens; simple: groups; first, average, max: groups of whole words, each "
        "with the tag of its first token, of its tokens' mean scores, or of its most certain token",
    )
    ignore_labels: FailFastList[str] | None = Field(None, description='labels to leave out (default ["O"])')


class Candidate(BaseModel):
    score: float = Field(description="probability over the whole vocabulary at the mask", examples=[0.41])
    token: int = Field(examples=[2605])
    token_str: str = Field(examples=["france"])
    sequence: str = Field(description="the text with this token", examples=["paris is the capital of france."])
    target: str = Field("", description="with targets: the one that this token stands for", examples=["France"])


class PairScore(BaseModel):
    """Probabilities under the names of /info's pair_labels: in_order and swapped if the head learned sentence order."""

    label: str = Field(examples=["is_next"])
    is_next: float = Field(examples=[0.98])
    not_next: float = Field(examples=[0.02])


class Label(BaseModel):
    label: str = Field(examples=["positive"])
    score: float = Field(examples=[0.93])


class Tag(BaseModel):
    entity: str = Field("", description="with aggregation_strategy none", examples=["B-PER"])
    entity_group: str = Field("", description="with any other aggregation_strategy", examples=["PER"])
    score: float = Field(examples=[0.99])
    index: int = Field(0, description="index of the token, with aggregation_strategy none", examples=[4])
    word: str = Field(examples=["clara"])
    start: int = Field(description="first character in the text", examples=[11])
    end: int = Field(description="one past the last character", examples=[16])


EmbedResponse = Annotated[list[list[float]], Field(description="a vector for each input", examples=[[[0.1, -0.2]]])]
MaskCandidates = list[Candidate] | list[list[Candidate]]  # of one input: with one mask, with several
FillMaskResponse = MaskCandidates | list[MaskCandidates]
NspResponse = PairScore | list[PairScore]
PredictResponse = list[Label] | list[list[Label]]
TagResponse = list[Tag] | list[list[Tag]]


class ErrorBody(BaseModel):
    error: str = Field(examples=[TOO_LONG])
    code: str = Field(examples=["too_long"])
    index: int | None = Field(None, description="index of the input with the error", examples=[3])
    request_id: str = Field(examples=["5f2c0f9e1d3a4b7c"])


class Status(BaseModel):
    status: str = Field(examples=["ready"])
