"""The backend of a service in one process: a model engine, its tokenizer and the tasks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ..artifact import Artifact
from ..backend import Backend
from ..models import serve_models
from ..observability.metrics import Metrics
from ..observability.scrape import register_state, render
from ..scheduling.cores import Concurrency
from ..settings import Settings
from .cpu import available_cores
from .device import ArtifactChoice, find_artifact
from .engine import Device, ModelEngine, common_concurrency
from .runner import ModelRunner

MAX_GUESS_SHARE = 10  # a guess counts for at most a tenth of the queue: an empty queue never refuses by it


class LocalBackend(Backend):
    engine: ModelEngine

    def __init__(
        self,
        artifact: Artifact,
        settings: Settings,
        metrics: Metrics,
        *,
        degraded: str = "",
        make_runner: Callable[[Artifact, int, Concurrency], ModelRunner] = ModelRunner,
        beside: "LocalBackend | None" = None,
    ) -> None:
        """`beside`: a backend of the same service, whose device this one shares."""
        super().__init__(artifact, settings, metrics, degraded=degraded, beside=beside)
        metrics.exemplars = settings.tracing and settings.workers == 1
        device = beside.engine.device if beside else Device()
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

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        await asyncio.to_thread(self.tokenizer.open)
        await self.engine.open()
        self.queue = self.engine.batcher
        self.max_guessed_tokens = self.engine.batcher.queue.max_tokens // MAX_GUESS_SHARE
        self._serve_tasks()

    async def close(self) -> None:
        self.drain()
        await self.engine.close()
        self.tokenizer.close()

    def leave(self) -> None:
        super().leave()
        self.engine.health.draining = True

    async def ready(self) -> str:
        return self.engine.readiness()

    async def info(self) -> dict[str, Any]:
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """The content of /info."""
        return self.engine.info() | {"mask_token": self.tokenizer.mask_token, "workers": self.settings.workers}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        await self.metrics.update_workers()
        state = register_state(self.artifacts, self.metrics.processes, await self.default.readiness())
        return render([state, self.metrics.registry()], accept)


def make_backend(settings: Settings, choices: Sequence[ArtifactChoice], metrics: Metrics) -> Backend:
    """That of a service of these models, the default first; a ServedModel where there are several, or they can be
    swapped."""

    def make(choice: ArtifactChoice, beside: Backend | None) -> LocalBackend:
        assert beside is None or isinstance(beside, LocalBackend)
        return LocalBackend(choice.artifact, settings, metrics, degraded=choice.degraded, beside=beside)

    def make_new(name: str, source: str, beside: Backend) -> Backend:
        return make(find_artifact(settings.of_model(name, source)), beside)

    first = make(choices[0], None)
    if len(choices) == 1 and not settings.can_swap:
        return first
    threads = settings.threads or available_cores()
    first.engine.device.concurrency = common_concurrency([one.artifact for one in choices], threads)
    return serve_models([first, *(make(one, first) for one in choices[1:])], make_new)
