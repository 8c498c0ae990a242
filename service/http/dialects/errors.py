"""The error bodies of the dialects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from service.tasks.schemas import TOO_LONG, ErrorBody

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

MAX_CHARACTERS = 2000  # of a message; our own longest sentence, of a 404, has 1,100


class OpenAIError(BaseModel):
    message: str = Field(examples=[TOO_LONG])
    type: OpenAIErrorType
    param: str | None = Field(description="the input with the error", examples=["input.3"])
    code: str = Field(examples=["too_long"])


class OpenAIErrorBody(BaseModel):
    error: OpenAIError
    detail: str = Field(description="the message again, where clients of Jina and Voyage read it", examples=[TOO_LONG])


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a dialect writes an error."""

    form: Callable[[str, int, str, str, int | None], bytes]  # request id, status, message, code, index of the input
    model: type[BaseModel]  # documents what `write` returns

    def write(self, request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
        """A message with a long value of the client's is cut in the middle: its end names the way out."""
        if len(message) > MAX_CHARACTERS:
            message = f"{message[: MAX_CHARACTERS // 2]} ... {message[-MAX_CHARACTERS // 2 :]}"
        return self.form(request_id, status, message, code, index)


def service_error(request_id: str, status: int, message: str, code: str, index: int | None) -> dict[str, Any]:
    """This service's error: TEI's two keys, and more."""
    kind = TEI_TYPES_BY_CODE.get(code) or TEI_TYPES_BY_STATUS.get(status, "Validation")
    content: dict[str, Any] = {"error": message, "error_type": kind, "code": code, "request_id": request_id}
    return content if index is None else content | {"index": index}


def _write_service_error(request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
    return orjson.dumps(service_error(request_id, status, message, code, index))


def openai_error(status: int, message: str, code: str, index: int | None) -> dict[str, Any]:
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = None if index is None else f"input.{index}"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": error, "detail": message}


def _write_openai_error(_request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
    return orjson.dumps(openai_error(status, message, code, index))


SERVICE_ERROR = ErrorShape(_write_service_error, ErrorBody)
OPENAI_ERROR = ErrorShape(_write_openai_error, OpenAIErrorBody)
