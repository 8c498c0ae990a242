"""The engine worker's side of a swap: what it opens, what it keeps, and what the API workers hear of it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.engine import Device, ModelEngine
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.workers import messages
from packbert.service.workers.child import open_pipe
from packbert.service.workers.engine_worker import EngineWorker
from tests.export import goldens

PATIENCE = 60.0  # seconds for what takes a fraction of one
Exported = Callable[..., goldens.Artifact]


class Connection:
    """An API worker's connection for the model `one`."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "s")

    async def greet(self, artifact: Artifact, process: int, *, source: str = "") -> messages.Hello:
        self.reader, self.writer = await asyncio.open_unix_connection(self._socket)
        place = str(artifact.folder.parent)
        hello = messages.Hello(messages.VERSION, artifact.digest, "one", place, process, source)
        self.writer.write(messages.frame(hello))
        return await messages.read_hello(self.reader)

    async def read(self) -> messages.FromEngine:
        return await messages.read_message(self.reader, messages.FROM_ENGINE)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def start(folder: Path, *roots: Path) -> AsyncIterator[tuple[EngineWorker, list[Artifact]]]:
    """A worker that loads the first artifact, as `one` and as `two`; and all artifacts."""
    artifacts, device = [open_artifact(root).served_as("one") for root in roots], Device()
    settings = Settings(artifact=roots[0], token_budget=64, threads=1, api_processes=2)

    def make(artifact: Artifact) -> ModelEngine:
        return ModelEngine(artifact, settings, Metrics(), device=device)

    with socket.socket(socket.AF_UNIX) as listener:
        ends = open_pipe()
        listener.bind(str(folder / "s"))
        listener.listen()
        worker = EngineWorker([make(artifacts[0]), make(artifacts[0].served_as("two"))], ends[1])
        worker.make = lambda hello: make(next(one for one in artifacts if one.digest == hello.artifact))
        running = asyncio.create_task(worker.run(listener.dup()))
        yield worker, artifacts
        worker._finish(0)
        assert await running == 0
        for end in ends:
            os.close(end)


def test_a_swap_while_the_models_of_the_start_load_opens_each_once(tmp_path: Path, exported: Exported) -> None:
    async def story() -> None:
        async with start(tmp_path, exported("bert").root, exported("bert-labels").root) as (worker, (_, new)):
            leader = Connection(tmp_path)
            assert (await leader.greet(new, 1, source="new")).artifact == new.digest
            await worker._loaded.wait()
            opened = worker.engines[-1].device.engines
            assert [opened.count(one) for one in worker.engines] == [1] * len(worker.engines)
            assert len(opened) == len(worker.engines)
            await leader.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


def test_an_api_worker_with_an_artifact_that_answers_no_more_gets_the_one_that_does(
    tmp_path: Path, exported: Exported
) -> None:
    async def story() -> None:
        async with start(tmp_path, exported("bert").root, exported("bert-labels").root) as (worker, (old, new)):
            before, leader, late = (Connection(tmp_path) for _ in range(3))
            await before.greet(old, 1)
            await leader.greet(new, 1, source="new")
            await before.close()
            while len(worker.engines) > 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            assert (await late.greet(old, 2)).artifact == new.digest
            assert len(worker.engines) == 2
            await leader.close()
            await late.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


def test_a_swap_back_waits_for_no_api_worker_that_has_the_artifact_still(tmp_path: Path, exported: Exported) -> None:
    async def story() -> None:
        async with start(tmp_path, exported("bert").root, exported("bert-labels").root) as (_, (old, new)):
            behind, first, second = (Connection(tmp_path) for _ in range(3))
            await behind.greet(old, 2)
            swap = asyncio.create_task(first.greet(new, 1, source="new"))
            assert isinstance(await behind.read(), messages.TakenOver)  # it does not follow
            swap.cancel()
            await second.greet(old, 1, source="old")
            behind.writer.write(messages.frame(messages.Query(1, "rate")))
            assert isinstance(await behind.read(), messages.QueryReply)  # nothing to follow
            for one in (behind, first, second):
                await one.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
