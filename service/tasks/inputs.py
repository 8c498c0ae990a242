"""What request models share: fields, texts and pairs of any accepted form, parameters."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ..errors import Invalid
from ..tokenization.encoding import Direction, Text

MAX_TOP_K = 1000  # candidates of a mask, answers of a question, targets
MAX_ATTENTION = 128  # tokens of an /attention request
POOLINGS = (
    "cls: hidden state of [CLS]; pooler: tanh(W cls + b); mean: over all tokens; sentence: all modules of a "
    "sentence-transformers checkpoint before its last Normalize; none: a vector per token, not normalized unless the "
    "request says so (/embed alone); multi: the vectors of tokens of ColBERT and BGE-M3, of unit length, of documents "
    "or with prompt_name query of queries (/embed alone); null: the default in /info"
)
PARAMETERS = "as in the Hugging Face API; the same keys are accepted at the top level"
PROMPT_NAME = "one of the checkpoint's prompts, put before each text; null: its default prompt (/info)"
TOKEN_IDS = "token ids only with `tokenizer`"
OWN_TOKENIZER = "the name of this model (/v1/models), where the inputs are token ids of its own tokenizer"
NO_EFFECT = "accepted for clients of other servers; has no effect"
TOO_LONG = "input has 613 tokens; this model takes at most 512: shorten it or send truncate: true"
SIDES: dict[str, Direction | None] = {"NONE": None, "START": "left", "END": "right"}  # of words of truncation
TWO_TEXTS = "a pair has two texts, this one has {}"
T = TypeVar("T")
FailFastList = Annotated[list[T], Field(fail_fast=True)]  # validation stops at the first of possibly millions of errors
StringOrList = str | FailFastList[str]


class TokenIdError:
    """In place of pydantic's error for an element that is no integer: it names the routes that take pairs of texts."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        expected = "Input should be a token id: this route takes single texts, or lists of token ids"
        message = f"{expected}; /nsp, /predict, /rerank and /score take pairs of texts"
        return core_schema.custom_error_schema(handler(source), "token_id", custom_error_message=message)


TokenId = Annotated[int, TokenIdError()]
TextsOrIds = StringOrList | FailFastList[int] | FailFastList[FailFastList[TokenId]]
Pooling = Literal["cls", "mean", "pooler", "sentence", "none", "multi"]
Lowercase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)  # TEI writes "Right"
LayerPooling = Literal["concat", "mean", "sum"] | FailFastList[float]


def _refuse_base64(value: object) -> object:
    if value == "base64":
        way_out = "/v1/embeddings has it, and /embed answers `Accept: application/x-npy` with a NumPy file"
        raise PydanticCustomError(
            "encoding", "base64 is not an encoding of this route: {way_out}", {"way_out": way_out}
        )
    return value


OnlyFloat = Annotated[Literal["float"], BeforeValidator(_refuse_base64)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SpecialTokensField(Body):
    special_tokens: bool | None = Field(
        None,
        description="read the special tokens in a text, as [SEP], as special tokens; false: as plain text, but for the "
        "checkpoint's own, as [E1]; null: the server's BERT_SPECIAL_TOKENS",
    )


class TruncationFields(SpecialTokensField):
    truncate: bool | Literal["NONE", "START", "END"] | None = Field(
        None,
        description="cut inputs that are too long; null: the server's BERT_TRUNCATE, but true for Cohere's embed and "
        "Ollama. Of Cohere and NVIDIA: NONE is false, START and END are true and name the side",
    )
    truncation_direction: Annotated[Direction, Lowercase] = Field("right", description="the side that is cut off")


class WindowFields(Body):
    long: Literal["windows"] | None = Field(
        None,
        description="windows: a text that is too long is read as windows that overlap; the header x-windows has the "
        "number of windows of each text, and each counts as an input",
    )
    stride: int | None = Field(
        None,
        ge=0,
        description="tokens that a window shares with the one before it (default: an eighth of max_input_length in "
        "/info); asks for windows also without `long`",
    )


class ClientOptions(Body):
    """What clients of the Hugging Face API say about its caches and queues; this service has neither."""

    wait_for_model: bool | None = None
    use_cache: bool | None = None
    use_gpu: bool | None = None
    dont_load_model: bool | None = None


class ModelField(Body):
    """Of every request whose path names no model."""

    model: str | None = Field(
        None, description="one of the service's models, where it has several; a service of one model accepts any name"
    )


class ClientFields(ModelField):
    """Fields that clients of other servers send."""

    user: str | None = Field(None, description=NO_EFFECT)
    options: ClientOptions | None = Field(None, description=NO_EFFECT)


class TextsWithPrompt(ModelField, TruncationFields):
    inputs: TextsOrIds = Field(examples=["my dog is hairy"], description=TOKEN_IDS)
    prompt_name: str | None = Field(None, description=PROMPT_NAME)
    tokenizer: str | None = Field(None, description=OWN_TOKENIZER)


class VectorFields(TruncationFields):
    pooling: Pooling | None = Field(None, description=POOLINGS)
    dimensions: int | None = Field(None, ge=1, description="keep the first n numbers, before normalizing")
    prompt_name: str | None = Field(None, description=PROMPT_NAME)
    prompt: str | None = Field(None, description='a prompt in full; "": none', examples=["query: "])


class EmbeddingFields(VectorFields):
    normalize: bool | None = Field(None, description="scale each vector to unit length; null: the default in /info")

    def refuse_vector_fields(self) -> None:
        """Raises Invalid for a field that applies to vectors alone, if a classifier's scores are asked for."""
        of_vectors = (name for name in EmbeddingFields.model_fields if name not in TruncationFields.model_fields)
        if given := [name for name in of_vectors if getattr(self, name) is not None]:
            way_out = "leave it out" if len(given) == 1 else "leave them out"
            of_scores = "the answer is a classifier's scores"
            raise Invalid(f"{', '.join(given)} applies to vectors, and {of_scores}: {way_out}", code=given[0])


class EmbedParameters(EmbeddingFields, WindowFields):
    encoding_format: OnlyFloat | None = Field(None, description="float; base64 is in /v1/embeddings")


class EmbedRequest(ClientFields, EmbedParameters):
    inputs: TextsOrIds = Field(examples=["my dog is hairy"], description=TOKEN_IDS)
    parameters: EmbedParameters | None = Field(None, description=PARAMETERS)
    pieces: bool = Field(False, description="with pooling none: each text as {pieces, vectors}")
    words: bool = Field(False, description="with pooling none: a vector for each word, the mean of its pieces")
    layers: FailFastList[int] | None = Field(
        None,
        description="hidden states of these layers instead of the last: 0 the embeddings, -1 the last layer; an answer "
        "has one more dimension, the layers, unless layer_pooling joins them. For pooling cls, mean and none",
        examples=[None],
    )
    layer_pooling: LayerPooling | None = Field(
        None, description="joins the layers: concat, mean, sum, or a weight for each", examples=[None]
    )
    tokenizer: str | None = Field(None, description=OWN_TOKENIZER)


class Pair(Body):
    text: str
    text_pair: str


def as_text(one: str | Pair | Sequence[str], index: int, *, alone: bool = False, wrong: str = TWO_TEXTS) -> Text:
    """A text or pair of any accepted form; `alone`: a list of one text is that text.

    Raises Invalid, `wrong` with the number of texts in the place of {}.
    """
    if isinstance(one, str):
        return one
    if isinstance(one, Pair):
        return one.text, one.text_pair
    if len(one) == 1 and alone:
        return one[0]
    if len(one) != 2:
        raise Invalid(wrong.format(len(one)), code="pair", index=index)
    return one[0], one[1]


class NspRequest(ModelField, TruncationFields):
    inputs: Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=[{"text": "I like tea.", "text_pair": "It is warm."}],
        description='one pair, also as ["a", "b"]; or a list of pairs, also as [["a", "b"], ["c", "d"]]',
    )


class SimilarityInputs(Body):
    source_sentence: str = Field(examples=["my dog is hairy"])
    sentences: FailFastList[str] = Field(examples=[["my cat is hairy", "it rains"]])


class SimilarityRequest(ClientFields, VectorFields):
    inputs: SimilarityInputs
    parameters: VectorFields | None = Field(None, description=PARAMETERS)


class RerankFields(TruncationFields):
    query: str = Field(examples=["what is a panda?"])
    raw_scores: bool = Field(False, description="return a cross-encoder's logits instead of their sigmoid")


class PairScore(BaseModel):
    """Probabilities under the names of /info's pair_labels: in_order and swapped if the head learned sentence order."""

    label: str = Field(examples=["is_next"])
    is_next: float = Field(examples=[0.98])
    not_next: float = Field(examples=[0.02])


Vectors = list[list[float]]
EmbedAllResponse = Annotated[list[Vectors], Field(description="for each input a vector for each token")]
EmbedResponse = Annotated[Vectors, Field(description="a vector for each input", examples=[[[0.1, -0.2]]])]
NspResponse = PairScore | list[PairScore]
SimilarityResponse = Annotated[list[float], Field(description="of each sentence, in order", examples=[[0.91, 0.23]])]


class ErrorBody(BaseModel):
    error: str = Field(examples=[TOO_LONG])
    error_type: Literal["Backend", "Empty", "Overloaded", "Tokenizer", "Unhealthy", "Validation"] = Field(
        description="as in text-embeddings-inference", examples=["Validation"]
    )
    code: str = Field(examples=["too_long"])
    index: int | None = Field(None, description="index of the input with the error", examples=[3])
    request_id: str = Field(examples=["5f2c0f9e1d3a4b7c"])


class Status(BaseModel):
    status: str = Field(examples=["ready"])


Request = TypeVar("Request", bound=Body)


def as_list(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def merge_parameters(request: Request) -> Request:
    """The request with the fields of its `parameters` at the top level. Raises Invalid for a field in both places."""
    if "parameters" not in request.model_fields_set:
        return request
    fields = _set_fields(request)
    if (parameters := fields.pop("parameters", None)) is None:
        return request
    nested = _set_fields(parameters)
    if twice := sorted(nested.keys() & fields.keys()):
        raise Invalid(f"{', '.join(twice)} given twice: at the top level and under parameters", code="parameters")
    return request.model_copy(update={**nested, "parameters": None})


def _set_fields(body: Body) -> dict[str, Any]:
    """The fields that the client sent and that are not null."""
    return {name: value for name in body.model_fields_set if (value := getattr(body, name)) is not None}


def choose_indices(asked: Sequence[int], count: int, name: str, *, way_out: str, known: str, twice: str) -> list[int]:
    """The indices that the field `name` asks for, from 0; a negative index counts from the end.

    Raises Invalid, in which the other arguments stand, for none, for an index out of `count`, and for the same twice.
    """
    if not asked:
        raise Invalid(f"{name} is empty: name at least one, {way_out}", code=name)
    if (wrong := next((index for index in asked if not -count <= index < count), None)) is not None:
        raise Invalid(f"{name} has {wrong}; this model has {known}", code=name)
    found = [index % count for index in asked]
    if (more := next((index for index in found if found.count(index) > 1), None)) is not None:
        raise Invalid(f"{name} has {twice.format(more)}", code=name)
    return found
