"""The backend of a service in one process: a model engine, its tokenizer and the tasks."""

import os
from collections.abc import Callable
from typing import Any

from packbert.service.artifact import Artifact
from packbert.service.backend import Backend
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.runner import ModelRunner
from packbert.service.observability import Metrics, register_state, render
from packbert.service.scheduling.cores import Concurrency
from packbert.service.settings import Settings

MAX_GUESS_SHARE = 10  # a guess counts for at most a tenth of the queue: an empty queue never refuses by it


class LocalBackend(Backend):
    def __init__(
        self,
        artifact: Artifact,
        settings: Settings,
        metrics: Metrics,
        *,
        degraded: str = "",
        make_runner: Callable[[Artifact, int, Concurrency], ModelRunner] = ModelRunner,
    ) -> None:
        super().__init__(artifact, settings, metrics, degraded=degraded)
        metrics.exemplars = settings.tracing
        self.engine = ModelEngine(
            artifact, settings, metrics, degraded, lambda: self.on_fatal(), make_runner, self.tracing
        )

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        await self._open_tokenizer()
        await self.engine.open()
        self.queue = self.engine.batcher
        self.max_guessed_tokens = self.engine.batcher.queue.max_tokens // MAX_GUESS_SHARE
        self._serve_tasks()

    async def close(self) -> None:
        self.drain()
        await self.engine.close()
        self._close_tokenizer()

    def leave(self) -> None:
        super().leave()
        self.engine.health.draining = True

    async def ready(self) -> str:
        return self.engine.readiness()

    async def info(self) -> dict[str, Any]:
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """The content of /info."""
        mask_token = self.tokenizer.mask_token if self._tasks else None
        return self.engine.info() | {"mask_token": mask_token, "api_processes": 0}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        state = register_state(self.artifact, {"": os.getpid()}, ready=not await self.ready())
        return render([state, *self.metrics.registries], accept)
