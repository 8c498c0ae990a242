"""A real HTTP server without a model, on a fake clock or on each of the event loops."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.http.server import Server, Starting
from packbert.service.models import Models
from packbert.service.observability.metrics import Metrics
from packbert.service.scheduling.batcher import Batcher
from packbert.service.settings import Settings
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, settle


class ModelessEngine(ModelEngine):
    """Admits requests and loads nothing."""

    async def open(self) -> None:
        self.batcher = Batcher(run=FakeRunner().run, queue=make_queue())  # serves nothing
        self.tasks = self._make_tasks()

    async def close(self) -> None: ...

    def readiness(self) -> str:
        return "draining" if self.health.draining else ""


def modeless(artifact: Artifact, settings: Settings) -> Models:
    """The models of a service, of which none is loaded."""
    return Models([ModelessEngine(artifact, settings, Metrics())])


def build_server(settings: Settings, models: Models) -> Server:
    """The server of models that it opens."""

    async def make(_: Starting) -> Models:
        return models

    return Server(settings, models.metrics, make)


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


async def serve(
    artifact: Path, story: Callable[[Server, int], Awaitable[None]], most: int = 1024, **settings: Any
) -> None:
    """Runs `story` with a server of at most so many connections, and its port; it ends after it."""
    chosen = Settings.model_validate({"model": str(artifact)} | settings)
    server = build_server(chosen, modeless(open_artifact(artifact), chosen))
    server.limits.most = most
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.create_task(server.serve([listener]))
    while server.models is None:
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
