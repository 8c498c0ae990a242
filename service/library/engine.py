"""`Engine`: a model in a Python program."""

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Self, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..engine.device import find_artifacts
from ..errors import LOADING, SHUTTING_DOWN, NotFound, Overloaded, ServiceError, Unavailable
from ..http.dialects import native, scores
from ..http.validation import validate
from ..model_names import fault_of_names
from ..models import Models, ServedModel, make_models
from ..observability.metrics import Metrics
from ..settings import MAX_TIMEOUT_MS, PREFIX, Settings, SettingsError
from ..tasks.results import as_lists
from ..turns import DEADLINE, Deadline
from .files import Input, estimate_tokens
from .job import TASKS, Answers, BulkEngine, Call, as_json, as_texts, in_order

Vector = NDArray[np.float32]  # [dimensions]
Vectors = NDArray[np.float32]  # [texts or tokens, dimensions]
T = TypeVar("T")

TIMEOUT_SECONDS = 3600.0  # of a request, which others may keep waiting
FIRST_PAUSE_SECONDS = 0.5  # after a refusal that names no time
TOKENS_AHEAD = 65_536  # estimated, of bulk requests under way
ROUTES = {
    **native.ROUTES,
    **native.TEI_ROUTES,
    **native.TOKEN_ROUTES,
    **scores.RERANK_ROUTES,
    "/score": scores.SCORE,
}
NOT_OPEN = "the engine is not open: use it in `with Engine.from_model(...) as engine`, or `async with`"


class LoopThread:
    """Starts at once; `stop` ends it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="bert-engine", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises what the coroutine raises. If the wait itself is interrupted, the coroutine is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """Waits until the thread has ended."""
        self.wait(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


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


class HealthReport(NamedTuple):
    ready: bool  # the model answered a known input lately
    status: str  # "ready", or why a call would not be answered now


class LoadReport(NamedTuple):
    waiting_tokens: int  # in the queue, with those expected from tokenizing
    tokens_per_second: float  # of the model, measured
    busy: float  # share of the device that runs used in the last 15 s or so, 0 to 1

    @property
    def waiting_seconds(self) -> float:
        """The time that it takes to compute what is in the queue."""
        return self.waiting_tokens / self.tokens_per_second if self.waiting_tokens else 0.0


class Engine(BulkEngine):
    """One model, or several that share the cores and one queue. `async with` opens it on the running event loop, `with`
    on a thread of its own, for the bulk methods and for `wait`. After it is closed it cannot be opened again.

    The coroutines of tasks return the route's own response and raise ServiceError as the route does; `index` is the
    place of the input.
    """

    def __init__(self, settings: Settings) -> None:
        """`from_model` makes the settings; those of the service are `Settings.from_environment()`."""
        self.settings = settings
        self._sources: dict[str, str] = {}  # by name, if there are several
        self._models: Models | None = None  # None until it is open
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._status = NOT_OPEN

    @classmethod
    def from_model(cls, model: Path | str, **options: object) -> Self:
        """An engine, not open yet, of what `packbert serve` takes: a hub id, a checkpoint's folder or an artifact.

        Opening it downloads and exports a model that is not in the cache. `options` are settings by their names in
        lower case, such as `threads=4`; None is the default. Raises SettingsError for an option that is unknown or
        cannot work.
        """
        given = {"model": model, **options}
        variables = {PREFIX + name.upper(): str(one) for name, one in given.items() if one is not None}
        try:
            return cls(Settings.from_environment(variables))
        except SettingsError as error:
            in_options = re.sub(rf"\b{PREFIX}([A-Z_]+)\b", lambda found: found[1].lower(), str(error))
            raise SettingsError(in_options) from None

    @classmethod
    def from_models(cls, models: Mapping[str, Path | str], **options: object) -> Self:
        """An engine of several models by name, as `from_model`. Each call may name a model, as in
        `engine.embed(texts, model="zh")`; without a name it is for the first."""
        if fault := fault_of_names([*models]) if models else "name one model or more":
            raise SettingsError(fault)
        engine = cls.from_model(next(iter(models.values())), **options)
        engine._sources = {name: str(model) for name, model in models.items()}
        return engine

    async def open(self) -> None:
        """Loads each model on this event loop and runs its self-test.

        Raises ManifestError for an artifact that cannot be used, DeviceError, SettingsError, and what loading raises.
        """
        if self._loop is not None:
            raise RuntimeError("this engine was opened before: make another with Engine.from_model")
        self._loop, self._status = asyncio.get_running_loop(), LOADING
        try:
            models = await self._load()
        except BaseException as error:
            self._status = f"loading failed: {type(error).__name__}: {error}"
            raise
        self._models = models

    async def _load(self) -> Models:
        """Reads and checks the files, as a start of the service does, and loads the models."""
        settings = [self.settings.of_model(name, source) for name, source in self._sources.items()]
        artifacts = await asyncio.to_thread(find_artifacts, settings or self.settings.of_each_model({}))
        models = make_models(self.settings, artifacts, Metrics())
        try:
            await models.open()
        except BaseException:
            await models.close()
            raise
        return models

    async def close(self) -> None:
        """Ends the models' threads. Calls that still wait raise Unavailable."""
        self._status = SHUTTING_DOWN
        models, self._models = self._models, None
        if models is not None:
            await models.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._thread.wait(self.open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.wait(self.close())
            self._thread.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the engine is open on. Raises Unavailable while it is not open."""
        if self._models is None or self._loop is None:
            raise Unavailable(self._status)
        return self._loop

    @property
    def models(self) -> Models:
        """The models, as HTTP would serve them. Raises Unavailable while the engine is not open."""
        if self._models is None:
            raise Unavailable(self._status, code="loading" if self._status is LOADING else None)
        return self._models

    def health(self, model: str | None = None) -> HealthReport:
        """Whether a call would be answered now, as /ready says it. May be asked from any thread."""
        if self._models is None:
            return HealthReport(ready=False, status=self._status)
        reason = self._find(model).current.readiness()
        return HealthReport(ready=not reason, status=reason or "ready")

    def load(self) -> LoadReport:
        """What a fleet scales on; zeros until the engine is open. May be asked from any thread."""
        if self._models is None:
            return LoadReport(waiting_tokens=0, tokens_per_second=0.0, busy=0.0)
        batcher = self._find().current.batcher
        return LoadReport(
            waiting_tokens=batcher.queue.expected,
            tokens_per_second=batcher.queue.tokens_per_second,
            busy=batcher.watchdog.busy.at(batcher.clock()),
        )

    def tokens_ahead(self) -> int:
        """Tokens that bulk calls keep in flight: a few batches, at most half of what the queue admits."""
        admitted = self.load().tokens_per_second * self.settings.max_wait_seconds
        return min(TOKENS_AHEAD, self.settings.max_waiting_tokens // 2, int(admitted) // 2)

    def info(self, model: str | None = None) -> dict[str, Any]:
        """The content of /info without the keys of text-embeddings-inference. Raises Unavailable until it is open."""
        return self._find(model).current.info()

    async def run(
        self, route: str, *, timeout_seconds: float | None = None, model: str | None = None, **fields: Any
    ) -> Any:
        """The response of a route, such as "/embed", to a body of these fields; those that are None are left out.

        Vectors are NumPy arrays, all else is as in its JSON. Raises ServiceError as the route does.
        """
        served = self._find(model)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the engine is open on another event loop: await it there, or use Engine.wait")
        if route not in ROUTES:
            raise NotFound(f"the engine has no route {route}; it has {', '.join(ROUTES)}")
        spec = ROUTES[route]
        request = validate(spec.request_model, {name: one for name, one in fields.items() if one is not None})
        if timeout_seconds is None:
            DEADLINE.set(Deadline(self.settings.timeout_ms / 1000, MAX_TIMEOUT_MS / 1000))
        else:
            DEADLINE.set(Deadline(timeout_seconds))
        return as_lists((await spec.answer(served, request)).value)

    async def run_task(self, task: str, inputs: Sequence[Input], **fields: Any) -> Sequence[Any]:
        """The answer to each input of one request of `task`, which `packbert bulk` has too."""
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
        return list(await self.run_task("fill-mask", as_texts(texts), **fields))

    async def nsp(self, pairs: Sequence[tuple[str, str]], **fields: Any) -> list[dict[str, str | float]]:
        """For each pair its label and the probabilities of both labels, as /nsp."""
        return list(await self.run_task("nsp", pairs, **fields))

    async def predict(self, inputs: str | Sequence[Input], **fields: Any) -> list[list[Label]]:
        """For each text or pair its labels, best first, as /predict."""
        return list(await self.run_task("predict", as_texts(inputs), **fields))

    async def tag(self, texts: str | Sequence[str], **fields: Any) -> list[list[dict[str, Any]]]:
        """For each text its tags, as /tag."""
        return list(await self.run_task("tag", as_texts(texts), **fields))

    async def rerank(self, query: str, texts: Sequence[str], **fields: Any) -> list[Ranked]:
        """The texts' places and scores, best first, as /rerank with `texts`."""
        return list(await self.run("/rerank", query=query, texts=as_texts(texts), **fields))

    async def similarity(self, source_sentence: str, sentences: Sequence[str], **fields: Any) -> list[float]:
        """The cosine of each sentence's vector and the source sentence's, as /similarity."""
        inputs = {"source_sentence": source_sentence, "sentences": as_texts(sentences)}
        return list(await self.run("/similarity", inputs=inputs, **fields))

    async def score(self, texts: str | Sequence[str], **fields: Any) -> Any:
        """How likely each text is, by a pass of the masked-language model for each token, as /score with `inputs`."""
        return await self.run("/score", inputs=texts, **fields)

    async def answer(self, question: str, context: str, **fields: Any) -> Any:
        """The parts of the context that answer the question, as /answer."""
        return await self.run("/answer", question=question, context=context, **fields)

    async def choose(self, prompt: str, choices: Sequence[str], **fields: Any) -> Any:
        """The choices by their probability, as /choose."""
        return await self.run("/choose", prompt=prompt, choices=list(choices), **fields)

    async def tokenize(self, texts: str | Sequence[str], **fields: Any) -> list[Any]:
        """For each text its tokens, as /tokenize."""
        return list(await self.run("/tokenize", inputs=as_texts(texts), **fields))

    async def attention(self, text: str | Mapping[str, str], **fields: Any) -> Any:
        """How much each token of a text or pair attends to each other, by layer and head, as /attention."""
        return await self.run("/attention", inputs=text, **fields)

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
                return await self.run_task(task, chunk, **fields)
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

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of this engine, in a program without an event loop: `engine.wait(engine.nsp(...))`.

        Raises what the coroutine raises, and RuntimeError on the engine's own event loop, which it would stop.
        """
        return self.submit(coroutine).result()

    def _find(self, model: str | None = None) -> ServedModel:
        """Raises NotFound for a model that is not there, and Unavailable while the engine is not open."""
        return self.models.default if model is None else self.models.find(model)
