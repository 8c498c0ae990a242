"""One row of the table of task routes: all that HTTP knows of a task."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.errors import Invalid
from service.http.dialects.errors import SERVICE_ERROR, ErrorShape
from service.http.limits.body import parse
from service.settings import Settings
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import Body

MAX_DIGITS = 12  # of a number of bytes


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
    binary_header: bytes = b""  # has the bytes of JSON at the start of a body that is not only JSON
    attach: Callable[[Any, bytes, int], Body] | None = None  # the rest, with at most so many inputs, to its request
    head: str = ""  # checked before the body is read; empty where it depends on the body

    def check_head(self, tasks: Tasks) -> None:
        """Raises NoSuchHead."""
        if self.head:
            tasks.require_head(self.head)

    def read(self, headers: Mapping[bytes, bytes], body: bytes, settings: Settings) -> Body:
        """The request in the body. Raises BadRequest, Invalid and TooLarge."""
        stated = headers.get(self.binary_header) if self.attach else None
        if self.attach is None or stated is None:
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
