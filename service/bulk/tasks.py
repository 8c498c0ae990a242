"""The tasks that take any number of inputs, each with the form of its requests and answers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from service.bulk.chunks import Input


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


class RequestFailed(Exception):
    """A request was refused for good, or the server could not be reached for `patience_seconds`."""

    def __init__(self, message: str, *, status: int = 0, index: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # of HTTP; 0 where there was no response
        self.index = index  # of the input with the error, in its request; None where the error concerns none


Answers = Sequence[Any] | RequestFailed  # to the inputs of one request, or why there are none


class BulkEngine(Protocol):
    """What answers a job: a client of a server, or an engine in this process."""

    def info(self) -> dict[str, Any]:
        """The content of /info."""

    def chunk(self, inputs: Iterable[Input]) -> Iterator[list[Input]]:
        """The inputs of each request, within the limits of a request."""

    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Answers, list[Input]]]:
        """The answers to each chunk, or why it failed, with the chunk itself; in their order."""


def as_json(item: Input, spec: Task) -> str | list[str]:
    """An input as the route takes it. Raises ValueError for a pair where the task takes texts."""
    if isinstance(item, str):
        return [item] if spec.lists else item
    if not spec.pairs:
        raise ValueError(f"{spec.path} takes texts, this input is a pair")
    return list(item)
