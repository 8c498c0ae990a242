"""An API worker: HTTP and tokenizing in this process, the queue and the model in the engine's process."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from packbert.service.artifact import Artifact
from packbert.service.backend import Backend
from packbert.service.engine.device import find_artifact
from packbert.service.errors import DeviceError, Unavailable
from packbert.service.http.server import build, freeze_libraries, run
from packbert.service.models import serve_models
from packbert.service.observability.metrics import Metrics, aggregate
from packbert.service.observability.scrape import CONTENT_TYPE, register_state, render
from packbert.service.settings import Settings
from packbert.service.workers import messages
from packbert.service.workers.child import WorkerSpec, metrics_dir, run_child, send_heartbeats, worker_pids
from packbert.service.workers.engine_client import EngineClient

CONNECT_GRACE_SECONDS = 2.0  # for a running engine to answer; one that is loading may take minutes
log = logging.getLogger("service")


class RemoteBackend(Backend):
    """A backend whose engine is another process."""

    queue: EngineClient

    def __init__(
        self,
        spec: WorkerSpec,
        settings: Settings,
        artifact: Artifact,
        metrics: Metrics,
        *,
        beside: Backend | None = None,
        replaces: bool = False,
        source: str = "",
        leads: bool = False,
    ) -> None:
        """`replaces`: it is opened when the engine has its artifact; `leads`: which the engine takes from this one."""
        super().__init__(artifact, settings, metrics, degraded=spec.degraded, beside=beside)
        self.spec, self.replaces, self.source = spec, replaces, source
        self.announces = spec.name == "api-0"
        self.queue = EngineClient(
            spec.socket,
            artifact.digest,
            grace_seconds=settings.run_timeout_seconds,
            on_other_artifact=self._restart_for_artifact,
        )
        if settings.can_swap:
            name, folder = artifact.manifest.name, str(artifact.folder.parent)
            self.queue.hello = messages.Hello(
                messages.VERSION, artifact.digest, name, folder, os.getpid(), source if leads else ""
            )
        self._background: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self._background.append(asyncio.create_task(self.queue.keep_connected()))
        await asyncio.to_thread(self.tokenizer.open)
        self._background.append(asyncio.create_task(send_heartbeats(self.spec.heartbeat)))
        self._serve_tasks()
        if self.replaces:
            await self.queue.connected_once.wait()
            if self.queue.fault:
                raise DeviceError(self.queue.fault)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.queue.connected_once.wait(), CONNECT_GRACE_SECONDS)

    async def close(self) -> None:
        self.drain()
        self.cancel_pending()
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        self.tokenizer.close()

    async def ready(self) -> str:
        if self.leaving:
            return "draining"
        try:
            return (await self.queue.query("ready")).decode()
        except Unavailable as error:
            return error.message

    async def info(self) -> dict[str, Any]:
        """What the engine says of itself, with what only this process knows."""
        try:
            engine: dict[str, Any] = orjson.loads(await self.queue.query("info"))
        except Unavailable as error:
            engine = {
                "model": self.artifact.manifest.name,
                "digest": self.artifact.digest,
                "status": error.message,
            }
        return engine | {"mask_token": self.tokenizer.mask_token, "api_processes": self.settings.api_processes}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:  # noqa: ARG002 - there are no exemplars to show
        """The sums over all processes' metric files, which outlive their processes, and the engine's queue metrics."""
        readiness, of_queue = await asyncio.gather(self.default.readiness(), self._query_metrics())
        return await asyncio.to_thread(self._render_sums, readiness) + of_queue, CONTENT_TYPE

    async def _query_metrics(self) -> bytes:
        """Empty without an engine."""
        try:
            return await self.queue.query("metrics")
        except Unavailable:
            return b""

    def _render_sums(self, readiness: dict[str, str]) -> bytes:
        folder = Path(self.spec.folder)
        processes = worker_pids(folder) | {"supervisor": os.getppid()}
        state, _ = render([register_state(self.artifacts, processes, readiness)], "")
        return state + aggregate(metrics_dir(folder))

    def _restart_for_artifact(self) -> None:
        log.error("engine now serves a different artifact: exiting so that the restarted worker loads it")
        self.on_fatal()


def serve(spec: WorkerSpec, settings: Settings, artifacts: Sequence[Artifact]) -> int:
    freeze_libraries()
    metrics = Metrics(spec.name, metrics_dir(Path(spec.folder)))
    following: set[asyncio.Task[bool]] = set()

    def make(artifact: Artifact, **how: Any) -> RemoteBackend:
        def follow() -> None:
            following.add(task := asyncio.create_task(default.find(artifact.manifest.name).swap(leads=False)))
            task.add_done_callback(following.discard)

        backend = RemoteBackend(spec, settings, artifact, metrics, **how)
        backend.queue.on_taken_over = follow
        return backend

    def make_new(name: str, source: str, beside: Backend, leads: bool) -> Backend:
        folder, source = (source, source) if leads else spec.swapped()[name]
        artifact = find_artifact(settings.of_model(name, folder)).artifact
        return make(artifact, beside=beside, replaces=True, source=source, leads=leads)

    first = make(artifacts[0])
    served: Backend = first
    if settings.can_swap:
        default = serve_models([first, *(make(one, beside=first) for one in artifacts[1:])], make_new)
        for name, (_, source) in spec.swapped().items():
            default.group[name].current.source = source
        served = default
    listeners = [each for each in (spec.listener, spec.admin_listener) if each is not None]
    # other API workers accept connections meanwhile
    server = build(settings, served, grace_seconds=2 * CONNECT_GRACE_SECONDS)
    return run(server, [socket.socket(fileno=each) for each in listeners])


if __name__ == "__main__":
    run_child(serve)
