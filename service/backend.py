"""The base class of the backends, which answer what HTTP receives; `admit` is the one admission call between the two.

A backend owns the tokenizer and the tasks. Its queue is the batcher of an engine in this process
(`engine/local_backend.py`) or the client of an engine in another one (`workers/api_worker.py`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .artifact import Artifact
from .errors import SHUTTING_DOWN, Unavailable
from .observability.metrics import Metrics
from .observability.start import start_tracing
from .scheduling.batcher import Batcher
from .scheduling.queue import BULK_SHARE
from .settings import Settings
from .tasks.defaults import embedding_defaults, root_task, scorer
from .tasks.flow import Limits, Tasks
from .tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .observability.spans import Tracing

BYTES_PER_TOKEN = 4  # of English text in JSON, a little low: only a nearly full queue refuses by this guess


class Backend(ABC):
    """Base class: `open` loads it, `admit` lets one request in, `drain` and `close` end it."""

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
        beside: "Backend | None" = None,
    ) -> None:
        """`beside`: a backend of the same process, whose tracing this one shares."""
        self.artifact, self.settings, self.metrics = artifact, settings, metrics
        self.degraded = degraded  # why the CPU is used although there is an artifact for CUDA
        self.tracing: Tracing | None = beside.tracing if beside else start_tracing(settings)
        self.tokenizer = Tokenizer(artifact, settings.max_characters, metrics.tokenizing)
        self.leaving = False  # /ready is 503, so that load balancers send no more requests
        self.draining = False  # new requests are refused
        self.on_fatal: Callable[[], None] = lambda: None  # called when the process should end with an exit code of 1
        self.group: Mapping[str, Backend] = {artifact.manifest.name: self}  # the service's models, the default first
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
        self.leaving = True

    def drain(self) -> None:
        """Not ready from now on, and new requests are refused; admitted requests are still answered."""
        self.leave()
        self.draining = True

    @abstractmethod
    async def open(self) -> None:
        """Loads what this backend needs. Raises what loading raises."""

    @abstractmethod
    async def close(self) -> None:
        """Ends what `open` started; requests that still wait get 503."""

    def cancel_pending(self) -> None:
        """Answers requests that still wait with 503."""
        self.queue.close(SHUTTING_DOWN)

    @abstractmethod
    async def ready(self) -> str:
        """Why a request would not be answered now; empty when it would."""

    async def readiness(self) -> dict[str, str]:
        """Why each of the service's models would not answer now, by name, the default first; empty where it would."""
        return {name: await model.ready() for name, model in self.group.items()}

    @abstractmethod
    async def info(self) -> dict[str, Any]:
        """The content of /info."""

    @abstractmethod
    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The content of /metrics and its media type; `accept` is what the scraper asks for."""

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
