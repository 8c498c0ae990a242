"""One row of the table of task routes: all that HTTP knows of a task."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from service.http.dialects.errors import SERVICE_ERROR, ErrorShape
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import Body


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A dialect's route to a task. Dialects differ in request and response shapes, never in how the model runs."""

    name: str  # in /metrics; the operation id in OpenAPI
    run: Callable[..., Awaitable[TaskResult]]  # (Tasks, request_model, *, timeout_seconds)
    request_model: type[Body]
    response_model: object  # documents what `run` returns as its value, and does not validate it
    summary: str
    npy: bool = False  # the value is one array, which is also served as NPY
    error_shape: ErrorShape = SERVICE_ERROR
    head: str = ""  # checked before the body is read; empty where it depends on the body

    def check_head(self, tasks: Tasks) -> None:
        """Raises NoSuchHead."""
        if self.head:
            tasks.require_head(self.head)
