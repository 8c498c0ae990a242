"""The tasks that take any number of inputs, and the requests of a bulk call: their order, and the place of an error."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.bulk.chunks import ChunkLimits, Input, read_limits, split_into_chunks
from service.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Task:
    path: str
    pairs: bool = False  # an input may be a pair of texts
    arrays: bool = False  # the answers of a request are the rows of one array
    lists: bool = False  # an input is sent as a list of its texts
    unwraps: bool = False  # the answer to a list of one input is the answer to that input


TASKS = {
    "embed": Task("/embed", arrays=True),
    "fill-mask": Task("/fill-mask", unwraps=True),
    "nsp": Task("/nsp", pairs=True, lists=True),
    "predict": Task("/predict", pairs=True, lists=True),
    "tag": Task("/tag"),
}


class RequestFailed(ServiceError):
    """A server refused a request for good, or could not be reached for `patience_seconds`."""

    code = "request_failed"  # or that of the server

    def __init__(self, message: str, *, status: int = 0, code: str | None = None, index: int | None = None) -> None:
        super().__init__(message, code=code, index=index)
        self.status = status  # of HTTP; 0 where there was no response


Answers = Sequence[Any] | ServiceError  # to the inputs of one request, or why there are none


class BulkEngine(ABC):
    """What answers any number of inputs: a client of a server, or an engine in this process."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """The content of /info."""

    @abstractmethod
    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Answers, list[Input]]]:
        """The answers to each chunk, or why it was refused, with the chunk itself; in their order."""

    @cached_property
    def _limits(self) -> ChunkLimits:
        return read_limits(self.info())

    def chunk(self, inputs: Iterable[Input]) -> Iterator[list[Input]]:
        """The inputs of each request, within the limits of a request."""
        return split_into_chunks(inputs, self._limits)

    def run_all(self, task: str, inputs: Iterable[Input], **fields: Any) -> Iterator[Any]:
        """The answer to each input, in order, for any task of `bert-service bulk`. Reads the inputs as it goes.

        Raises ServiceError for an input that is refused; `index` is its place among all.
        """
        first = 0
        for answers, chunk in self.run_chunks(task, self.chunk(inputs), **fields):
            if isinstance(answers, ServiceError):
                raise place(answers, first, "input")
            first += len(chunk)
            yield from answers


def place(error: ServiceError, first: int, word: str) -> ServiceError:
    """The error of a request with the index among all inputs, which its message then names; `first`: of the request."""
    if error.index is not None:
        error.index += first
        error.message = f"{word} {error.index}: {error.message}"
        error.args = (error.message,)
    return error


def in_order(
    chunks: Iterable[list[Input]],
    submit: Callable[[list[Input]], Future[Answers]],
    *,
    size: Callable[[list[Input]], int],
    most: Callable[[], int],
) -> Iterator[tuple[Answers, list[Input]]]:
    """Submits chunks of at most the size `most()` together, one at least; their results in order, each with its chunk.

    Those that are left when the iteration ends early are cancelled.
    """
    pending: deque[tuple[Future[Answers], list[Input], int]] = deque()
    ahead = 0
    try:
        for chunk in chunks:
            need = size(chunk)
            while pending and ahead + need > most():
                future, sent, had = pending[0]
                yield future.result(), sent
                pending.popleft()
                ahead -= had
            pending.append((submit(chunk), chunk, need))
            ahead += need
        while pending:
            yield pending[0][0].result(), pending[0][1]
            pending.popleft()
    finally:
        for future, _, _ in pending:
            future.cancel()


def as_json(item: Input, spec: Task) -> str | list[str]:
    """An input as the route takes it. Raises ValueError for a pair where the task takes texts."""
    if isinstance(item, str):
        return [item] if spec.lists else item
    if not spec.pairs:
        raise ValueError(f"{spec.path} takes texts, this input is a pair")
    return list(item)
