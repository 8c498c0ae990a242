"""An API process's side of the service: a tokenizer and the tasks here, the line and the model in the engine's process."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from service.artifact import Artifact
from service.backend import BYTES_PER_TOKEN, SHUTTING_DOWN
from service.errors import Unavailable
from service.metrics import Metrics, aggregate
from service.settings import Settings
from service.tasks.base import Limits, Tasks
from service.tasks.tokenizer import Tokenizer
from service.workers.child import WorkerSpec, metrics_dir
from service.workers.client import EngineClient
from service.workers.heartbeat import send_heartbeats

CONNECT_GRACE_SECONDS = 2.0  # for an engine that is there to say welcome; one that is not may take minutes
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class RemoteBackend:
    """What `Engine` is to an application in its own process."""

    post: WorkerSpec
    settings: Settings
    artifact: Artifact
    metrics: Metrics
    startup_grace_seconds: float = 2 * CONNECT_GRACE_SECONDS  # there are others to accept meanwhile
    on_fatal: Any = field(default=lambda: None)
    draining: bool = False
    batcher: EngineClient = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    _tasks: Tasks | None = None
    _background: "list[asyncio.Task[None]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batcher = EngineClient(
            self.post.socket,
            self.artifact.digest,
            patience_seconds=self.settings.run_timeout_seconds,
            on_other_artifact=self._other_artifact,
        )
        self.tokenizer = Tokenizer(self.artifact, self.settings.max_characters)

    @property
    def tasks(self) -> Tasks:
        if self._tasks is None:
            raise Unavailable("the tokenizer is loading: try again in a few seconds", code="loading", retry_after=2)
        return self._tasks

    async def open(self) -> None:
        settings = self.settings
        self._background.append(asyncio.create_task(self.batcher.keep_connected()))
        await asyncio.to_thread(self.tokenizer.open)
        self._background.append(asyncio.create_task(send_heartbeats(self.post.pulse)))
        limits = Limits(max_inputs=settings.max_inputs, max_top_k=settings.max_top_k, truncate=settings.truncate)
        self._tasks = Tasks(
            manifest=self.artifact.manifest, tokenizer=self.tokenizer, batcher=self.batcher, limits=limits
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(self.batcher.connected_once.wait(), CONNECT_GRACE_SECONDS)

    async def close(self) -> None:
        self.drain()
        self.cancel_pending()
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._tasks is not None:
            self.tokenizer.close()

    def check_admission(self, body_bytes: int) -> None:
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        self.batcher.check_admission(max(1, body_bytes // BYTES_PER_TOKEN))

    def admit(self, body_bytes: int) -> Tasks:
        self.check_admission(body_bytes)
        return self.tasks

    def drain(self) -> None:
        self.draining = True

    def cancel_pending(self) -> None:
        self.batcher.close(SHUTTING_DOWN)

    async def ready(self) -> str:
        if self.draining or self._tasks is None:
            return "draining" if self.draining else "loading"
        try:
            return (await self.batcher.ask("ready")).decode()
        except Unavailable as error:
            return error.message

    async def info(self) -> dict[str, Any]:
        try:
            engine: dict[str, Any] = orjson.loads(await self.batcher.ask("info"))
        except Unavailable as error:
            engine = {"model": self.artifact.manifest.name, "artifact": self.artifact.digest, "status": error.message}
        return engine | {"api_processes": self.settings.api_processes}

    async def render_metrics(self) -> bytes:
        """Everyone's counts, which lie in files that outlive their processes, and the line as the engine sees it."""
        counts = await asyncio.to_thread(aggregate, metrics_dir(Path(self.post.folder)))
        try:
            return counts + await self.batcher.ask("metrics")
        except Unavailable:
            return counts

    def _other_artifact(self) -> None:
        log.error("the engine serves another artifact by now: this process ends, so that its successor reads that one")
        self.on_fatal()
