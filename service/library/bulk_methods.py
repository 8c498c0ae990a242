"""Any number of inputs through an engine, from a thread that has no event loop: a few requests at a time."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from service.bulk.chunks import Input, estimate_tokens, read_limits, split_into_chunks
from service.errors import Overloaded, ServiceError
from service.library.methods import TaskMethods, Vector
from service.library.options import EmbedOptions

T = TypeVar("T")
TIMEOUT_SECONDS = 3600.0  # of a request, which others may keep waiting
FIRST_PAUSE_SECONDS = 0.5  # after a refusal that names no time


class BulkMethods(TaskMethods):
    """Base class of `Engine`: methods that block, for `with Engine.from_artifact(path) as engine`."""

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the engine is open on. Raises Unavailable while it is not open."""

    @abstractmethod
    def info(self) -> dict[str, Any]: ...

    @abstractmethod
    def tokens_ahead(self) -> int:
        """The most tokens that bulk requests under way should have: less than what the queue would refuse."""

    def embed_all(self, texts: Iterable[str], **options: Unpack[EmbedOptions]) -> Iterator[Vector]:
        """A vector [dimensions] float32 for each text, in order, as `embed` gives it.

        Reads the texts as it goes, and holds no more of them and of their vectors than those of a few requests. Raises
        ServiceError for a text that the model refuses; `index` is its place among `texts`.
        """
        return self.run_all("embed", texts, **options)

    def run_all(self, task: str, inputs: Iterable[Input], **fields: Any) -> Iterator[Any]:
        """As `embed_all`, for any task of `bert-service bulk`: the answer to each input."""
        first = 0
        for answers, chunk in self.run_chunks(task, self.chunk(inputs), **fields):
            if isinstance(answers, ServiceError):
                if answers.index is not None:
                    answers.index += first
                    answers.message = f"input {answers.index}: {answers.message}"
                    answers.args = (answers.message,)
                raise answers
            first += len(chunk)
            yield from answers

    def chunk(self, inputs: Iterable[Input]) -> Iterator[list[Input]]:
        """The inputs of each request, within the limits of a request."""
        return split_into_chunks(inputs, read_limits(self.info()))

    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Sequence[Any] | ServiceError, list[Input]]]:
        """The answers to each chunk, or why it was refused, with the chunk itself; in their order."""
        pending: deque[tuple[Future[Sequence[Any] | ServiceError], list[Input], int]] = deque()
        ahead = 0
        fields = {"timeout_seconds": TIMEOUT_SECONDS} | fields
        try:
            for chunk in chunks:
                tokens = sum(map(estimate_tokens, chunk))
                while pending and ahead + tokens > self.tokens_ahead():
                    future, sent, size = pending[0]
                    yield future.result(), sent
                    pending.popleft()
                    ahead -= size
                pending.append((self.submit(self._answer_in_time(task, chunk, fields)), chunk, tokens))
                ahead += tokens
            while pending:
                future, sent, _ = pending[0]
                yield future.result(), sent
                pending.popleft()
        finally:
            for future, _, _ in pending:
                future.cancel()

    async def _answer_in_time(
        self, task: str, chunk: Sequence[Input], fields: dict[str, Any]
    ) -> Sequence[Any] | ServiceError:
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
