"""The tasks as methods of `Engine`, for requests and for files."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from packbert.service.errors import Overloaded, ServiceError
from packbert.service.library.files import Input, estimate_tokens
from packbert.service.library.job import TASKS, Answers, BulkEngine, Call, as_json, in_order

Vector = NDArray[np.float32]  # [dimensions]
Vectors = NDArray[np.float32]  # [texts or tokens, dimensions]


T = TypeVar("T")
TIMEOUT_SECONDS = 3600.0  # of a request, which others may keep waiting
FIRST_PAUSE_SECONDS = 0.5  # after a refusal that names no time


class Candidate(TypedDict):
    """A word for a mask."""

    score: float  # probability over the whole vocabulary
    token: int
    token_str: str
    sequence: str
    target: NotRequired[str]  # with targets


class Label(TypedDict):
    label: str
    score: float


class Ranked(TypedDict):
    index: int  # of the text in the call
    score: float
    text: NotRequired[str]  # with return_text


class TaskMethods(BulkEngine):
    """Base class of `Engine`. Coroutines return the route's own response and raise ServiceError as the route does;
    `index` is the place of the input. The other methods block, for `with Engine.from_artifact(path) as engine`."""

    @abstractmethod
    async def run(self, route: str, *, timeout_seconds: float | None = None, **fields: Any) -> Any: ...

    async def answer(self, task: str, inputs: Sequence[Input], **fields: Any) -> Sequence[Any]:
        """The answer to each input of one request of `task`, one of those that `packbert bulk` has."""
        spec = TASKS[task]
        found = await self.run(spec.path, inputs=[as_json(one, spec) for one in inputs], **fields)
        return [found] if spec.unwraps and len(inputs) == 1 else list(found)

    async def embed(self, texts: str | Sequence[str], **fields: Any) -> Vectors:
        """[texts, dimensions] float32, as /embed: pooling, normalize and prompt by default as the checkpoint says."""
        vectors: Vectors = await self.run("/embed", inputs=as_texts(texts), **fields)
        return vectors

    async def embed_tokens(self, texts: str | Sequence[str], **fields: Any) -> list[Vectors]:
        """A float32 array [tokens, dimensions] for each text, as /embed with `pooling: "none"`."""
        return list(await self.run("/embed", inputs=as_texts(texts), pooling="none", **fields))

    async def embed_sparse(self, texts: str | Sequence[str], **fields: Any) -> list[list[dict[str, Any]]]:
        """For each text its words' weights, `{"index", "value"}`, as /embed_sparse."""
        return list(await self.run("/embed_sparse", inputs=as_texts(texts), **fields))

    async def fill_mask(
        self, texts: str | Sequence[str], **fields: Any
    ) -> list[list[Candidate] | list[list[Candidate]]]:
        """For each text its candidates, best first; for a text of several masks a list for each, as /fill-mask."""
        return list(await self.answer("fill-mask", as_texts(texts), **fields))

    async def nsp(self, pairs: Sequence[tuple[str, str]], **fields: Any) -> list[dict[str, str | float]]:
        """For each pair its label and the probabilities of both labels, as /nsp."""
        return list(await self.answer("nsp", pairs, **fields))

    async def predict(self, inputs: str | Sequence[Input], **fields: Any) -> list[list[Label]]:
        """For each text or pair its labels, best first, as /predict."""
        inputs = [inputs] if isinstance(inputs, str) else inputs
        return list(await self.answer("predict", inputs, **fields))

    async def tag(self, texts: str | Sequence[str], **fields: Any) -> list[list[dict[str, Any]]]:
        """For each text its tags, as /tag."""
        return list(await self.answer("tag", as_texts(texts), **fields))

    async def rerank(self, query: str, texts: Sequence[str], **fields: Any) -> list[Ranked]:
        """The texts' places and scores, best first, as /rerank with `texts`."""
        return list(await self.run("/rerank", query=query, texts=as_texts(texts), **fields))

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

    def one_call(self, task: str, **fields: Any) -> Call:
        fields = {"timeout_seconds": TIMEOUT_SECONDS} | fields
        return partial(
            in_order,
            submit=lambda chunk: self.submit(self._answer_in_time(task, chunk, fields)),
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


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """One text is a list of one: a string is a sequence of strings too."""
    return [texts] if isinstance(texts, str) else list(texts)
