"""An engine worker with a fake model and API workers, in one event loop, over a real unix socket."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from packbert.service.errors import (
    ServiceError,
)
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Request
from packbert.service.workers.child import open_pipe
from packbert.service.workers.engine_client import EngineClient
from packbert.service.workers.engine_worker import EngineWorker
from tests.service.fakes import FakeRunner, adds_up, make_queue, sequence
from tests.service.fakes import submit as submit_work

GRACE_SECONDS = 10
E = TypeVar("E", bound=ServiceError)


class FakeEngine:
    """An engine with a FakeRunner as its model and a real queue."""

    def __init__(self, runner: FakeRunner, waiting: RequestQueue) -> None:
        self.artifact: Any = SimpleNamespace(digest="mine")
        self.batcher = Batcher(run=runner.run, queue=waiting)
        self.metrics: Any = SimpleNamespace(queue_text=lambda: b"counts")
        self.on_fatal: Callable[[], None] = lambda: None

    def readiness(self) -> str:
        return "some reason"

    def check_open(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return {"model": "fake"}

    async def open(self) -> None:
        self._serving = asyncio.create_task(self.batcher.serve())

    async def close(self) -> None:
        self.batcher.fail_all("the engine stops")
        await self._serving


class Processes:
    """An engine worker and API workers, all in one event loop, with a real socket between them."""

    def __init__(self, folder: Path, runner: FakeRunner, waiting: RequestQueue) -> None:
        self.folder, self.runner = folder, runner
        self.engine = FakeEngine(runner, waiting)
        self.listener = socket.socket(socket.AF_UNIX)
        self.heartbeat = open_pipe()
        self.clients: list[tuple[EngineClient, asyncio.Task[None]]] = []
        self.other_artifacts: list[str] = []

    @property
    def batcher(self) -> Batcher:
        return self.engine.batcher

    async def start_engine(self) -> None:
        self.worker = EngineWorker([self.engine], self.heartbeat[1])  # type: ignore[list-item]
        self.running = asyncio.create_task(self.worker.run(self.listener.dup()))

    async def stop_engine(self) -> int:
        self.worker._finish(0)
        return await self.running

    async def connect(self, artifact: str = "mine") -> EngineClient:
        """A client that may not be connected yet."""
        client = EngineClient(
            self.folder / "s",
            artifact,
            grace_seconds=GRACE_SECONDS,
            on_other_artifact=lambda: self.other_artifacts.append(artifact),
        )
        self.clients.append((client, asyncio.create_task(client.keep_connected())))
        return client

    async def connected(self) -> EngineClient:
        client = await self.connect()
        await until(lambda: client._writer is not None)
        return client

    async def close(self) -> None:
        for client, task in self.clients:
            client.close("closed")
            task.cancel()
        await asyncio.wait([task for _, task in self.clients])
        self.runner.release()
        await until(lambda: self.batcher.counts.in_flight == 0)
        assert adds_up(self.batcher)
        if not self.running.done():
            await self.stop_engine()
        self.listener.close()
        for end in self.heartbeat:
            os.close(end)


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits turn by turn; the processor seconds of this thread, which runs both ends: other processes do not count."""
    started, began = time.monotonic(), time.thread_time()
    while not holds():
        assert time.monotonic() < started + seconds
        await asyncio.sleep(0)
    return time.thread_time() - began


@asynccontextmanager
async def start(
    folder: Path, runner: FakeRunner | None = None, waiting: RequestQueue | None = None
) -> AsyncIterator[Processes]:
    processes = Processes(folder, runner or FakeRunner(), make_queue() if waiting is None else waiting)
    processes.listener.bind(str(folder / "s"))
    processes.listener.listen(10)
    await processes.start_engine()
    try:
        yield processes
    finally:
        await processes.close()


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


def submit(client: EngineClient, *numbers: int, length: int = 4, timeout: float = 100.0) -> "asyncio.Task[Request]":
    return asyncio.create_task(submit_work(client, [sequence(n, length) for n in numbers], timeout))


def numbers_of(result: Request) -> list[int]:
    return [int(row["cls"][0]) for row in result.rows]


async def error_of(task: "asyncio.Task[Request]", kind: type[E]) -> E:
    with pytest.raises(kind) as raised:
        await task
    assert type(raised.value) is kind
    return raised.value


def parts_of(client: EngineClient, sequences: int, tokens: int, timeout: float = 100.0) -> Request:
    return client.begin((), sequences=sequences, tokens=tokens, timeout_seconds=timeout)
