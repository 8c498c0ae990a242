"""A real HTTP server without a model, on a fake clock or on each of the event loops."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from packbert.service.artifact import open_artifact
from packbert.service.backend import Backend
from packbert.service.errors import ServiceError
from packbert.service.http.server import Server, build
from packbert.service.observability.metrics import Metrics
from packbert.service.observability.scrape import render
from packbert.service.scheduling.batcher import Batcher
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Tasks
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, settle


class ModelessBackend(Backend):
    """Admits requests and loads nothing."""

    refusal: ServiceError | None = None  # of a full queue

    async def open(self) -> None:
        self.queue = Batcher(run=FakeRunner().run, queue=make_queue())  # serves nothing
        self._serve_tasks()

    def admit(self, body_bytes: int) -> Tasks:
        if self.refusal is not None:
            raise self.refusal
        return super().admit(body_bytes)

    async def close(self) -> None: ...

    def cancel_pending(self) -> None: ...

    async def ready(self) -> str:
        return "draining" if self.leaving else ""

    async def info(self) -> dict[str, Any]:
        return {}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return render([self.metrics.registry()], accept)


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


async def serve(
    artifact: Path, story: Callable[[Server, int], Awaitable[None]], most: int = 1024, **settings: Any
) -> None:
    """Runs `story` with a server of at most so many connections, and its port; it ends after it."""
    chosen = Settings.model_validate({"artifact": artifact} | settings)
    server = build(chosen, ModelessBackend(open_artifact(artifact), chosen, Metrics()))
    server.limits.most = most
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.create_task(server.serve([listener]))
    while server.backend is None:
        await settle()
    try:
        await story(server, port)
    finally:
        server.ended.set()
        await serving
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def play_server(artifact: Path, story: Callable[[Server, int, FakeTime], Awaitable[None]], **settings: Any) -> None:
    """`serve` on a fake clock."""
    play(lambda time: serve(artifact, lambda server, port: story(server, port, time), **settings))


def run_server(artifact: Path, story: Callable[[Server, int], Awaitable[None]], loop: str, **settings: Any) -> None:
    """`serve` on one of LOOPS."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(serve(artifact, story, **settings))
