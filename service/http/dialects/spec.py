"""One row of the table of task routes: all that HTTP knows of a task."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.http.dialects.errors import SERVICE_ERROR, ErrorShape
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import Body


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A dialect's route to a task. Dialects differ in request and response shapes, never in how the model runs."""

    name: str  # in /metrics; the operation id in OpenAPI, unless there are several routes
    run: Callable[..., Awaitable[TaskResult]]  # (Tasks, request_model, *, timeout_seconds)
    request_model: type[Body]
    response_model: object  # documents what `run` returns as its value, and does not validate it
    summary: str
    npy: bool = False  # the value is one array, which is also served as NPY
    error_shape: ErrorShape = SERVICE_ERROR
    operation: str = ""  # the operation id of a further route to the same task
    binary_header: bytes = b""  # its presence means that the body is not only JSON; then `read_binary` reads it
    read_binary: Callable[[Mapping[bytes, bytes], bytes], Body] | None = None  # of headers and body
    head: str = ""  # checked before the body is read; empty where it depends on the body

    def check_head(self, tasks: Tasks) -> None:
        """Raises NoSuchHead."""
        if self.head:
            tasks.require_head(self.head)


class Content(NamedTuple):
    """The value of a TaskResult that is no JSON: the bytes of the response."""

    data: bytes | bytearray
    media_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
