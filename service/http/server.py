"""uvicorn around whatever serves: HTTP on one address, and an end that leaves nobody without an answer."""

import asyncio
import logging
import resource
import socket
import sys
from contextlib import suppress
from types import FrameType

import uvicorn

from service.backend import Backend
from service.http.app import create_app
from service.http.protocol import ConnectionLimits, LimitedHttpProtocol
from service.settings import Settings

LINGER_SECONDS = 1.0  # after SIGTERM the door stays open so long at least: who was about to send on a connection that is kept is told 503, not reset
GRACE_SECONDS = 5  # after the drain, for the last answers to reach their callers
SWITCH_SECONDS = 0.0005  # a hop to the runtime and back, while a thread tokenizes a bulk, waits 3 ms for the interpreter at the default 0.005, 1 ms so
KEEP_ALIVE_SECONDS = (
    75  # longer than the 60 of common balancers: the side that reuses a connection is the one to close it
)
log = logging.getLogger("service")


class Server(uvicorn.Server):
    """uvicorn, which at SIGTERM first finishes what it has, then stops listening."""

    def __init__(self, config: uvicorn.Config, *, engine: Backend, gate: ConnectionLimits) -> None:
        super().__init__(config)
        self.engine, self.gate = engine, gate
        self.failed = False
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn has logged why
            log.error("cannot listen on %s:%d (BERT_HOST, BERT_PORT)", self.config.host, self.config.port)
            self.fail()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The first signal drains, another one ends it now."""
        if self.engine.draining or not self.started:
            self.should_exit = True
        self.engine.drain()
        if self.started:
            self._loop.call_soon_threadsafe(self._start_leaving)

    def fail(self) -> None:
        self.failed = self.should_exit = True

    def _start_leaving(self) -> None:
        if self._leaving is not None:
            return
        self.gate.draining = True
        for connection in self.server_state.connections:
            if isinstance(connection, LimitedHttpProtocol):
                connection.close_after_answer()
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Requests that are here now are finished; newcomers are refused by the application."""
        linger = asyncio.create_task(asyncio.sleep(LINGER_SECONDS))
        await asyncio.wait(
            {linger, *self.server_state.tasks}, timeout=max(LINGER_SECONDS, self.engine.settings.drain_seconds)
        )
        self.engine.cancel_pending()
        self.should_exit = True


def build(settings: Settings, engine: Backend) -> Server:
    gate = ConnectionLimits(
        client_timeout_seconds=settings.client_timeout_seconds,
        max_header_bytes=settings.max_header_bytes,
        refused=engine.metrics.rejected_by_protocol,
    )
    config = uvicorn.Config(
        lambda: create_app(engine, on_failure=lambda: server.fail()),
        factory=True,
        host=settings.host,
        port=settings.port,
        http=LimitedHttpProtocol.bind(
            gate
        ),  # on httptools, which refuses smuggled and folded headers that h11 lets through
        ws="none",
        log_level=settings.log_level,
        access_log=False,
        proxy_headers=False,  # nobody asks where a request comes from
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        date_header=False,
        server_header=False,
    )
    server = Server(config, engine=engine, gate=gate)
    return server


def run(server: Server, sockets: list[socket.socket] | None = None) -> int:
    """Serves until the end; the exit code."""
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_connections()
    server.run(sockets=sockets)
    return 1 if server.failed or not server.started else 0


def allow_connections() -> None:
    """As many open files as this process may have: under the usual soft limit of 1,024, callers after as many kept connections are reset."""
    with suppress(ValueError, OSError):  # no system has to allow it
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
