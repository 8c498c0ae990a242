"""An engine as jobs of files take it: errors are those of a client."""

from collections.abc import Iterable, Iterator
from typing import Any

from service.bulk.chunks import Input
from service.bulk.tasks import Answers, RequestFailed
from service.errors import ServiceError
from service.library.engine import Engine


class JobEngine:
    """A `BulkEngine`, over an engine that `with` has opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def info(self) -> dict[str, Any]:
        return self._engine.info()

    def chunk(self, inputs: Iterable[Input]) -> Iterator[list[Input]]:
        return self._engine.chunk(inputs)

    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Answers, list[Input]]]:
        for answers, chunk in self._engine.run_chunks(task, chunks, **fields):
            if isinstance(answers, ServiceError):
                yield RequestFailed(answers.message, status=answers.status, index=answers.index), chunk
            else:
                yield answers, chunk
