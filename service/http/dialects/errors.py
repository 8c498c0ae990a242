"""The error bodies of the dialects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from service.tasks.schemas import TOO_LONG, ErrorBody


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


def _write_service_error(request_id: str, _status: int, message: str, code: str, index: int | None) -> bytes:
    content: dict[str, Any] = {"error": message, "code": code, "request_id": request_id}
    return orjson.dumps(content if index is None else content | {"index": index})


def _write_openai_error(_request_id: str, status: int, message: str, code: str, index: int | None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = None if index is None else f"input.{index}"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


SERVICE_ERROR = ErrorShape(_write_service_error, ErrorBody)
OPENAI_ERROR = ErrorShape(_write_openai_error, OpenAIErrorBody)


def error_shape_of(path: str) -> ErrorShape:
    """The shape of an error on a path without a task, such as a 404."""
    return OPENAI_ERROR if path.startswith("/v1/") else SERVICE_ERROR
