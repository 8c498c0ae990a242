"""The engine as a process of its own: requests of all API workers join one queue; results that are ready together leave
in one message.

Knows connections and an engine; knows nothing of HTTP or texts.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.artifact import Artifact
from service.engine.engine import ModelEngine
from service.metrics import Metrics
from service.settings import Settings
from service.tracing.start import start_tracing
from service.workers import messages
from service.workers.child import LOAD_FAILED, WorkerSpec, run_child
from service.workers.connection.api_connection import ApiConnection
from service.workers.heartbeat import send_heartbeats

READ_AHEAD_BYTES = 2**20
# the socket's file has to stay, because the replacement accepts on it too
KEEP_SOCKET_FILE: Mapping[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class EngineWorker:
    """Accepts connections of API workers; `run` returns after a signal or a failure."""

    engine: ModelEngine
    heartbeat: int  # write end of the pipe
    _connections: set[ApiConnection] = field(default_factory=set)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _heartbeats: "asyncio.Task[None] | None" = None
    _code: int = 0

    async def run(self, listener: socket.socket) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        self.engine.on_fatal = lambda: self._finish(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._finish, 0)
        server = await asyncio.start_unix_server(
            self._on_connect, sock=listener, limit=READ_AHEAD_BYTES, **KEEP_SOCKET_FILE
        )
        loading = asyncio.create_task(self._load())
        await self._end.wait()
        server.close()
        loading.cancel()
        await self.engine.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        return self._code

    async def _load(self) -> None:
        try:
            await self.engine.open()
        except Exception:
            log.exception("the model cannot be loaded")
            self._finish(LOAD_FAILED)
        else:
            self._heartbeats = asyncio.create_task(send_heartbeats(self.heartbeat))

    def _finish(self, code: int) -> None:
        self._code = self._code or code
        self._end.set()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ApiConnection(self.engine, self.engine.artifact.manifest.bounds, writer)
        self._connections.add(connection)
        try:
            await connection.serve(reader)
        except (OSError, asyncio.IncompleteReadError):
            log.info("an API worker has disconnected: %r", connection)
        except messages.ProtocolError as error:
            log.error("dropping a connection that sent %s", error)
        finally:
            self._connections.discard(connection)
            writer.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, as in uvicorn: the engine's own work for a single text takes 21 us, not 25."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def work(spec: WorkerSpec, settings: Settings, artifact: Artifact) -> int:
    engine = ModelEngine(artifact, settings, Metrics(), degraded=spec.degraded, tracing=start_tracing(settings))
    # never closed: that would wait for a thread that still loads, or for a run that hangs
    runner = asyncio.Runner(loop_factory=new_loop)
    code = runner.run(EngineWorker(engine, spec.heartbeat).run(socket.socket(fileno=spec.listener)))
    if engine.tracing is not None:
        engine.tracing.close()
    return code


if __name__ == "__main__":
    run_child(work)
