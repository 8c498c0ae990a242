"""A loaded model: its engine, its tokenizer and its tasks."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .artifact import Artifact
from .engine.engine import Device, MakeRunner, ModelEngine
from .engine.runner import ModelRunner
from .errors import SHUTTING_DOWN
from .observability.metrics import Metrics
from .observability.start import start_tracing
from .scheduling.batcher import Batcher
from .settings import Settings
from .tasks.flow import Tasks
from .tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .observability.spans import Tracing

MAX_GUESS_SHARE = 10  # a guess counts for at most a tenth of the queue: an empty queue never refuses by it
BYTES_PER_TOKEN = 4  # of English text in JSON, a little low: only a nearly full queue refuses by this guess


class Users:
    """How many requests a backend answers; entered by each of them until its end, whatever is swapped meanwhile."""

    def __init__(self) -> None:
        self.count, self.none = 0, asyncio.Event()  # set when the last has ended

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.none.set()


class Backend:
    """`open` loads it, a request enters `users` while it runs its tasks, `close` ends it."""

    engine: ModelEngine
    queue: Batcher  # when it is open
    tasks: Tasks  # when it is open

    def __init__(
        self,
        artifact: Artifact,
        settings: Settings,
        metrics: Metrics,
        *,
        degraded: str = "",
        make_runner: MakeRunner = ModelRunner,
        beside: "Backend | None" = None,
    ) -> None:
        """`beside`: a backend of the same process, whose tracing and device this backend shares."""
        self.artifact, self.settings, self.metrics = artifact, settings, metrics
        self.degraded = degraded  # why the CPU is used although there is an artifact for CUDA
        self.tracing: Tracing | None = beside.tracing if beside else start_tracing(settings)
        self.tokenizer = Tokenizer(artifact, settings.max_characters, metrics.tokenizing)
        self.on_fatal: Callable[[], None] = lambda: None  # called when the process should end with an exit code of 1
        metrics.exemplars = settings.tracing and settings.workers == 1
        self.engine = ModelEngine(
            artifact,
            settings,
            metrics,
            degraded=degraded,
            on_fatal=lambda: self.on_fatal(),
            make_runner=make_runner,
            tracing=self.tracing,
            device=beside.engine.device if beside else Device(),
        )
        self.users = Users()  # requests that it answers

    def check_admission(self, body_bytes: int) -> None:
        """Raises Overloaded or Unavailable if the queue would refuse a request whose body has so many bytes (0:
        unknown) and has not been read yet."""
        queue = self.queue.queue
        if queue.held or queue.closed:  # an empty queue takes any request
            guessed = max(1, body_bytes // BYTES_PER_TOKEN)
            self.queue.check_admission(min(guessed, queue.max_tokens // MAX_GUESS_SHARE))

    def leave(self) -> None:
        """Not ready from now on; new requests are still admitted."""
        self.engine.health.draining = True

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        await asyncio.to_thread(self.tokenizer.open)
        await self.engine.open()
        self.queue = self.engine.batcher
        self._serve_tasks()

    async def close(self) -> None:
        """Ends what `open` started; requests that still wait get 503."""
        await self.engine.close()
        self.tokenizer.close()

    def cancel_pending(self) -> None:
        """Answers requests that still wait with 503."""
        self.queue.close(SHUTTING_DOWN)

    async def ready(self) -> str:
        """Why a request would not be answered now; empty if it would."""
        return self.engine.readiness()

    def info(self) -> dict[str, Any]:
        """The content of /info."""
        return self.engine.info() | {"mask_token": self.tokenizer.mask_token, "workers": self.settings.workers}

    def _serve_tasks(self) -> None:
        manifest, settings = self.artifact.manifest, self.settings
        self.tasks = Tasks(manifest=manifest, tokenizer=self.tokenizer, queue=self.queue, settings=settings)
