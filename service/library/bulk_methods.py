"""Any number of inputs through an engine, from a thread that has no event loop: a few requests at a time."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from service.bulk.chunks import Input, estimate_tokens
from service.bulk.tasks import Answers, BulkEngine, in_order
from service.errors import Overloaded, ServiceError
from service.library.methods import TaskMethods, Vector

T = TypeVar("T")
TIMEOUT_SECONDS = 3600.0  # of a request, which others may keep waiting
FIRST_PAUSE_SECONDS = 0.5  # after a refusal that names no time


class BulkMethods(TaskMethods, BulkEngine):
    """Base class of `Engine`: methods that block, for `with Engine.from_artifact(path) as engine`."""

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the engine is open on. Raises Unavailable while it is not open."""

    @abstractmethod
    def tokens_ahead(self) -> int:
        """The most tokens that bulk requests under way should have: less than what the queue would refuse."""

    def embed_all(self, texts: Iterable[str], **fields: Any) -> Iterator[Vector]:
        """A vector [dimensions] float32 for each text, in order, as `embed` gives it.

        Reads the texts as it goes, and holds no more of them and of their vectors than those of a few requests. Raises
        ServiceError for a text that the model refuses; `index` is its place among `texts`.
        """
        return self.run_all("embed", texts, **fields)

    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Answers, list[Input]]]:
        fields = {"timeout_seconds": TIMEOUT_SECONDS} | fields
        return in_order(
            chunks,
            lambda chunk: self.submit(self._answer_in_time(task, chunk, fields)),
            size=lambda chunk: sum(map(estimate_tokens, chunk)),
            most=self.tokens_ahead,
        )

    async def _answer_in_time(self, task: str, chunk: Sequence[Input], fields: dict[str, Any]) -> Answers:
        """Sends a request again that was refused because the queue is full of others."""
        while True:
            try:
                return await self.answer(task, chunk, **fields)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after or FIRST_PAUSE_SECONDS)
            except ServiceError as error:
                return error

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine of this engine from another thread.

        Raises RuntimeError on the engine's own event loop, which cannot wait for itself.
        """
        try:
            loop = self.loop
            if loop is asyncio._get_running_loop():  # None in a thread without one
                raise RuntimeError("this would stop the engine's own event loop: await it, or call asyncio.to_thread")
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
