"""A model of the service: its engine, its tokenizer and its tasks; `admit` is the one call by which requests get in."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .artifact import Artifact
from .engine.engine import Device, ModelEngine
from .engine.runner import ModelRunner
from .errors import SHUTTING_DOWN, Unavailable
from .observability.metrics import Metrics
from .observability.scrape import register_state, render
from .observability.start import start_tracing
from .scheduling.batcher import Batcher
from .scheduling.cores import Concurrency
from .scheduling.queue import BULK_SHARE
from .settings import Settings
from .tasks.defaults import embedding_defaults, root_task, scorer
from .tasks.flow import Limits, Tasks
from .tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .observability.spans import Tracing

MAX_GUESS_SHARE = 10  # a guess counts for at most a tenth of the queue: an empty queue never refuses by it
BYTES_PER_TOKEN = 4  # of English text in JSON, a little low: only a nearly full queue refuses by this guess


class Backend:
    """`open` loads it, `admit` lets one request in, `drain` and `close` end it."""

    engine: ModelEngine
    source = ""  # of its artifact, where it can be swapped: a hub id, a checkpoint's folder or an artifact
    queue: Batcher  # set before `_serve_tasks`
    _tasks: Tasks  # when it is open
    max_guessed_tokens: int = 2**62  # a guess from the body's bytes counts for at most this many tokens

    def __init__(
        self,
        artifact: Artifact,
        settings: Settings,
        metrics: Metrics,
        *,
        degraded: str = "",
        make_runner: Callable[[Artifact, int, Concurrency], ModelRunner] = ModelRunner,
        beside: "Backend | None" = None,
    ) -> None:
        """`beside`: a backend of the same process, whose tracing and device this one shares."""
        self.artifact, self.settings, self.metrics = artifact, settings, metrics
        self.degraded = degraded  # why the CPU is used although there is an artifact for CUDA
        self.tracing: Tracing | None = beside.tracing if beside else start_tracing(settings)
        self.tokenizer = Tokenizer(artifact, settings.max_characters, metrics.tokenizing)
        self.leaving = False  # /ready is 503, so that load balancers send no more requests
        self.draining = False  # new requests are refused
        self.on_fatal: Callable[[], None] = lambda: None  # called when the process should end with an exit code of 1
        self.group: Mapping[str, Backend] = {artifact.manifest.name: self}  # the service's models, the default first
        metrics.exemplars = settings.tracing and settings.workers == 1
        device: Device = beside.engine.device if beside else Device()
        self.engine = ModelEngine(
            artifact,
            settings,
            metrics,
            degraded,
            lambda: self.on_fatal(),
            make_runner,
            self.tracing,
            device=device,
        )
        self.users, self.unused = 0, asyncio.Event()  # requests of `answering`; set when the last has ended

    def admit(self, body_bytes: int) -> Tasks:
        """Returns the tasks to a request whose body has `body_bytes` bytes (0: unknown) and has not been read yet.

        Raises Unavailable while draining, Overloaded where the queue would refuse the request.
        """
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        if self.queue.queue.held or self.queue.queue.closed:  # an empty queue takes any request
            self.queue.check_admission(min(max(1, body_bytes // BYTES_PER_TOKEN), self.max_guessed_tokens))
        return self._tasks

    @contextmanager
    def answering(self) -> Iterator[Tasks]:
        """The tasks of a request until its end, whatever is swapped meanwhile. Raises as `admit`."""
        tasks = self.admit(0)
        self.users += 1
        try:
            yield tasks
        finally:
            self.users -= 1
            if not self.users:
                self.unused.set()

    @property
    def default(self) -> "Backend":
        """The first of the service's models, which the server has."""
        return next(iter(self.group.values()))

    @property
    def artifacts(self) -> list[Artifact]:
        """Of the service's models, the default first."""
        return [one.artifact for one in self.group.values()]

    def leave(self) -> None:
        """Not ready from now on; new requests are still admitted."""
        self.leaving = self.engine.health.draining = True

    def drain(self) -> None:
        """Not ready from now on, and new requests are refused; admitted requests are still answered."""
        self.leave()
        self.draining = True

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        await asyncio.to_thread(self.tokenizer.open)
        await self.engine.open()
        self.queue = self.engine.batcher
        self.max_guessed_tokens = self.queue.queue.max_tokens // MAX_GUESS_SHARE
        self._serve_tasks()

    async def close(self) -> None:
        """Ends what `open` started; requests that still wait get 503."""
        self.drain()
        await self.engine.close()
        self.tokenizer.close()

    def cancel_pending(self) -> None:
        """Answers requests that still wait with 503."""
        self.queue.close(SHUTTING_DOWN)

    async def ready(self) -> str:
        """Why a request would not be answered now; empty when it would."""
        return self.engine.readiness()

    async def readiness(self) -> dict[str, str]:
        """Why each of the service's models would not answer now, by name, the default first; empty where it would."""
        return {name: await model.ready() for name, model in self.group.items()}

    async def info(self) -> dict[str, Any]:
        """The content of /info."""
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """As `info`."""
        return self.engine.info() | {"mask_token": self.tokenizer.mask_token, "workers": self.settings.workers}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The content of /metrics and its media type; `accept` is what the scraper asks for."""
        await self.metrics.update_workers()
        state = register_state(self.artifacts, self.metrics.processes, await self.default.readiness())
        return render([state, self.metrics.registry()], accept)

    def _serve_tasks(self) -> None:
        """From now on `admit` lets requests in."""
        settings = self.settings
        limits = Limits(
            max_inputs=settings.max_inputs,
            truncate=settings.truncate,
            special_tokens=settings.special_tokens,
            max_tokens=int(settings.max_waiting_tokens * BULK_SHARE),
        )
        manifest = self.artifact.manifest
        self._tasks = Tasks(
            manifest=manifest,
            tokenizer=self.tokenizer,
            queue=self.queue,
            limits=limits,
            embedding=embedding_defaults(manifest, settings),
            scorer=scorer(manifest, by_cosine=settings.rerank == "cosine"),
            root_task=root_task(manifest, settings),
        )
