"""The error bodies of the dialects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from service.tasks.schemas import TOO_LONG, ErrorBody

# text-embeddings-inference's names of errors; of all other statuses: Validation
TEI_TYPES_BY_CODE = {"empty": "Empty", "tokenizer_failed": "Tokenizer"}
TEI_TYPES_BY_STATUS = {429: "Overloaded", 500: "Backend", 501: "Backend", 503: "Unhealthy"}


class OpenAIError(BaseModel):
    message: str = Field(examples=[TOO_LONG])
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="the input with the error", examples=["input.3"])
    code: str = Field(examples=["too_long"])


class OpenAIErrorBody(BaseModel):
    error: OpenAIError


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a dialect writes an error."""

    write: Callable[[str, int, str, str, int | None], bytes]  # request id, status, message, code, index of the input
    model: type[BaseModel]  # documents what `write` returns


def service_error(request_id: str, status: int, message: str, code: str, index: int | None) -> dict[str, Any]:
    """This service's error: TEI's two keys, and more."""
    kind = TEI_TYPES_BY_CODE.get(code) or TEI_TYPES_BY_STATUS.get(status, "Validation")
    content: dict[str, Any] = {"error": message, "error_type": kind, "code": code, "request_id": request_id}
    return content if index is None else content | {"index": index}


def _write_service_error(request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
    return orjson.dumps(service_error(request_id, status, message, code, index))


def _write_openai_error(_request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = None if index is None else f"input.{index}"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


SERVICE_ERROR = ErrorShape(_write_service_error, ErrorBody)
OPENAI_ERROR = ErrorShape(_write_openai_error, OpenAIErrorBody)


def error_shape_of(path: str) -> ErrorShape:
    """The shape of an error on a path without a task, such as a 404."""
    return OPENAI_ERROR if path.startswith("/v1/") else SERVICE_ERROR
