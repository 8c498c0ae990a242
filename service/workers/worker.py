"""A worker: a whole service, whose connections, turns to swap and counts are those of all workers together."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from packbert.model_export.artifact.lifeline import end_with

from ..errors import Unavailable
from ..http.server import Alone, Server
from ..logs import configure_logging
from ..models import Models, ServedModel, Swapped
from ..settings import Settings
from .channel import BEAT_SECONDS, Channel, HandedConnections, SwappedModels, WorkerSpec

log = logging.getLogger("service")


class Membership(Alone):
    """What a worker says to its supervisor, and does at its word."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self.name, self.counts, self.models = spec.name, spec.counts, spec.models
        self._socket = socket.socket(fileno=spec.channel)
        self.channel = Channel(self._socket.send)  # a line is shorter than the socket's buffer
        self.listener = HandedConnections(spec.connections, spec.address)
        self._serving = asyncio.Event()
        self._swapping = asyncio.Lock()  # this worker has one turn at a time

    def begin(self, server: Server) -> None:
        self._server = server
        server.metrics.update_workers = partial(self.channel.ask, "all_counted", scraped=True)
        self.start(self._listen())

    async def _listen(self) -> None:
        """Does what the supervisor says; the process ends with it."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket.dup())
        self.start(self._beat())
        while line := await reader.readline():
            for kind, value in self.channel.read(line):
                self._on_message(kind, value)
        os._exit(1)

    def announce(self, about: str, settings: Settings) -> None:  # noqa: ARG002 - the supervisor has them
        self._serving.set()
        self.channel.tell(ready=about)

    def join(self, models: Models) -> None:
        """They take turns with those of the other workers, and know what was swapped before."""
        models.take_turn, models.awaited = self.swap, "loading"
        for name, (_, source) in self.models.items():
            models.group[name].source = source

    async def _beat(self) -> None:
        while True:
            with suppress(BlockingIOError):  # a supervisor that is stopped reads nothing
                self.channel.tell(connections=len(self._server.limits.connections))
            await asyncio.sleep(BEAT_SECONDS)

    def _on_message(self, kind: str, value: Any) -> None:
        if kind == "count":
            self._server.metrics.update_queue()
            self.channel.tell(counted=True)
        elif kind == "processes":
            self._server.metrics.processes = value | {"supervisor": os.getppid()}
        elif kind == "follow":
            self.start(self._follow(value))
        elif kind == "all_serve" and (models := self._server.models) is not None:
            models.awaited = ""
        elif kind == "reload" and (models := self._server.models) is not None:
            self.start(models.reload(swaps=value))

    async def swap(self, model: ServedModel, swap: Callable[[], Awaitable[Swapped]]) -> Swapped:
        """Calls `swap` when no other worker swaps, and returns its result when all workers have followed."""
        async with self._swapping:
            await self.channel.ask("turn", swap=True)
            changed: SwappedModels = {}
            try:
                digest, swapped = await swap()
                if swapped:
                    changed = {model.name: (str(model.artifact.folder.parent), model.source)}
            finally:
                await self.channel.ask("done", swapped=changed)
            return digest, swapped

    async def _follow(self, changed: SwappedModels) -> None:
        """Swaps what another worker has swapped; if that fails, this process ends, and the next process opens it."""
        await self._serving.wait()
        models = self._server.models
        assert models is not None
        for name, (folder, source) in changed.items():
            try:
                await models.group[name].follow(folder, source)
            except Unavailable:  # the service ends
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, a new process is the cure
                log.error("%s is not what the other workers serve: %s", name, error)
                self._server.fail()
                return
        self.channel.tell(followed=True)

    def leave(self, listeners: Sequence[socket.socket]) -> None:  # noqa: ARG002 - the supervisor has them
        self.channel.tell(leaving=True)


def begin_worker(argument: str) -> tuple[Settings, Membership]:
    """`argument`: a WorkerSpec. The process ends with the supervisor."""
    spec = WorkerSpec(**json.loads(argument))
    end_with(os.getppid())
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    settings = Settings.from_environment()
    configure_logging(settings, process=spec.name)
    return settings, Membership(spec)
