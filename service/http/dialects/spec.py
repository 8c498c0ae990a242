"""A row of the table of task routes, the shapes of errors, and shapes of responses that an example documents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from inspect import signature
from operator import or_
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, Field, create_model

from ...errors import Invalid, ServiceError
from ...models import ServedModel
from ...settings import Settings
from ...tasks.flow import Read, TaskResult, answer_request
from ...tasks.inputs import TOO_LONG, Body, ErrorBody
from ..body import parse

OpenAIErrorType = Literal[
    "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error", "server_error"
]
OPENAI_TYPES: dict[int, OpenAIErrorType] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# text-embeddings-inference's names of errors; of all other statuses: Validation
TEI_TYPES_BY_CODE = {"empty": "Empty", "tokenizer_failed": "Tokenizer"}
TEI_TYPES_BY_STATUS = {429: "Overloaded", 500: "Backend", 501: "Backend", 503: "Unhealthy"}
MAX_DIGITS = 12  # of a number of bytes
MAX_CHARACTERS = 2000  # of a message; our own longest sentence, of a 404, has 1,100


class Explained(NamedTuple):
    """A value of an example, and a sentence about it."""

    example: Any
    about: str
    absent: bool = False  # in some responses


def like(model: str, about: str = "", /, **example: Any) -> type[BaseModel]:
    """The pydantic model, named `model`, that documents a JSON object of the form of `example`.

    A list is documented by its first item, a tuple holds alternatives, and a type stands for itself.
    """
    fields: dict[str, Any] = {}
    for key, value in example.items():
        one = value if isinstance(value, Explained) else Explained(value, "")
        shown = [one.example] if _is_plain(one.example) else None
        field = Field(None if one.absent else ..., description=one.about or None, examples=shown)
        fields[key] = (type_like(one.example), field)
    return create_model(model, __doc__=about or None, **fields)


def type_like(example: Any) -> Any:
    """The type of `example`, as in `like`."""
    if isinstance(example, tuple):
        return reduce(or_, map(type_like, example))
    if isinstance(example, list):
        return list[type_like(example[0])]  # type: ignore[misc]
    if isinstance(example, dict):
        return dict[str, Any]
    return type(example) if _is_plain(example) else example


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | dict) or (isinstance(value, list) and all(map(_is_plain, value)))


class OpenAIError(BaseModel):
    message: str = Field(examples=[TOO_LONG])
    type: OpenAIErrorType
    param: str | None = Field(description="the input with the error", examples=["input.3"])
    code: str = Field(examples=["too_long"])


class OpenAIErrorBody(BaseModel):
    error: OpenAIError
    detail: str = Field(description="the message again, where clients of Jina and Voyage read it", examples=[TOO_LONG])


class ScoreErrorBody(OpenAIErrorBody):
    index: int | None = Field(None, description="index of the input with the error", examples=[3])
    request_id: str = Field(examples=["5f2c0f9e1d3a4b7c"])


class RerankErrorBody(ErrorBody):
    message: str = Field(description="the same sentence, where Cohere's clients look for it")
    detail: str = Field(description="the same sentence, where Jina's and Voyage's clients look for it")


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a dialect writes an error."""

    model: type[BaseModel]  # documents what `write` returns
    form: Callable[[dict[str, Any], ServiceError], dict[str, Any]]  # of this service's form: TEI's two keys, and more

    def write(self, request_id: str, error: ServiceError) -> bytes:
        """A message with a long value of the client's is cut in the middle: its end names the way out."""
        message = error.message
        if len(message) > MAX_CHARACTERS:
            message = f"{message[: MAX_CHARACTERS // 2]} ... {message[-MAX_CHARACTERS // 2 :]}"
        kind = TEI_TYPES_BY_CODE.get(error.code) or TEI_TYPES_BY_STATUS.get(error.status, "Validation")
        own: dict[str, Any] = {"error": message, "error_type": kind, "code": error.code, "request_id": request_id}
        return orjson.dumps(self.form(own if error.index is None else own | {"index": error.index}, error))


def _openai_error(own: dict[str, Any], error: ServiceError) -> dict[str, Any]:
    message = own["error"]
    kind = OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = None if error.index is None else f"input.{error.index}"
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}, "detail": message}


def _score_error(own: dict[str, Any], error: ServiceError) -> dict[str, Any]:
    return _openai_error(own, error) | {name: own[name] for name in ("request_id", "index") if name in own}


SERVICE_ERROR = ErrorShape(ErrorBody, lambda own, _: own)
MESSAGE_ERROR = ErrorShape(  # of Cohere, Jina, Voyage and NVIDIA
    RerankErrorBody, lambda own, _: own | {"message": own["error"], "detail": own["error"]}
)
OPENAI_ERROR = ErrorShape(OpenAIErrorBody, _openai_error)
SCORE_ERROR = ErrorShape(ScoreErrorBody, _score_error)


@dataclass(frozen=True)
class TaskSpec:
    """A dialect's route to a task. Dialects differ in request and response shapes, never in how the model runs.

    The request model is that of the task's last parameter, the summary in OpenAPI the first sentence of its docstring.
    """

    name: str  # in /metrics; the operation id in OpenAPI, unless there are several routes
    task: Read
    response_model: object  # documents the value of the answer, and does not validate it
    npy: bool = False  # the value is an array, which is also served as NPY
    of_tei: bool = False  # answers have text-embeddings-inference's headers
    error_shape: ErrorShape = SERVICE_ERROR
    operation: str = ""  # the operation id of a further route to the same task
    binary_header: bytes = b""  # has the bytes of JSON at the start of a body that is not only JSON
    attach: Callable[[Any, bytes, int], Body] | None = None  # the rest, with at most so many inputs, to its request
    head: str = ""  # that the model needs; empty if that depends on the body

    @cached_property
    def request_model(self) -> type[Body]:
        *_, request = signature(self.task).parameters.values()
        return request.annotation  # type: ignore[no-any-return]

    @property
    def summary(self) -> str:
        task = self.task.func if isinstance(self.task, partial) else self.task
        return " ".join((task.__doc__ or "").split()).partition(". ")[0].removesuffix(".")

    async def answer(self, served: ServedModel, request: Body) -> TaskResult:
        """The model's answer; its digest is in the result if the model can be swapped. Raises NoSuchHead too."""
        engine = served.current
        with engine.users:
            result = await answer_request(engine.tasks, self.task, request, head=self.head)
        if served.models.can_swap:
            result.model = engine.artifact.digest
        return result

    def read(self, headers: Mapping[bytes, bytes], body: bytes, settings: Settings) -> Body:
        """The request in the body. Raises BadRequest, Invalid and TooLarge."""
        if self.attach is None or (stated := headers.get(self.binary_header)) is None:
            return parse(self.request_model, body, settings)
        if not stated.isdigit() or len(stated) > MAX_DIGITS or int(stated) > len(body):
            named, shown = self.binary_header.decode(), stated[:20].decode("latin-1")
            raise Invalid(f"{named} is {shown!r}; the body has {len(body)} bytes", code="tensor")
        request = parse(self.request_model, body[: int(stated)], settings)
        return self.attach(request, body[int(stated) :], settings.max_inputs)


class Content(NamedTuple):
    """The value of a TaskResult that is no JSON: the bytes of the response."""

    data: bytes | bytearray
    media_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
