"""Runs the application on uvicorn: HTTP on its addresses, and a shutdown that responds to every pending request."""

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from packbert.service.address import begin_no_connection, notify, wait_until_ready
from packbert.service.backend import Backend
from packbert.service.http.app import PROBE_PATHS, allow_origins, create_app
from packbert.service.http.connection import Connection
from packbert.service.http.limits import (
    BODIES,
    LEAST_BODY_BYTES,
    RESERVE,
    Acceptor,
    BufferedBytes,
    ConnectionLimits,
)
from packbert.service.http.loop_watchdog import watch_loop
from packbert.service.logs import log_access
from packbert.service.models import ServedModel
from packbert.service.observability.series import UNKNOWN
from packbert.service.settings import Settings

AFTER_DRAIN_SECONDS = 1.0  # keep listening: a client that sends its next request after its answer gets 503, no reset
LAST_CONNECTIONS_SECONDS = 0.5  # before the port closes: for handshakes under way, and the requests that follow them
FLUSH_SECONDS = 5  # after the drain, for the last responses to be sent
CLOSED_CHECK_SECONDS = 0.02
# While a thread tokenizes, the default of 0.005 delays the inference thread by 3 ms; this value by 1 ms.
GIL_SWITCH_SECONDS = 0.0005
# Allocations between two garbage collections. A request that is answered leaves no cycles, and one in flight has 30
# objects: at the default of 700, with 1,000 connections, collections took a tenth of the loop's time and found nothing.
COLLECT_AFTER = 50_000
MIN_IDLE_SECONDS = 1.0  # before a connection may be closed for another one
KEEP_ALIVE_SECONDS = 75  # longer than the 60 of common load balancers, which must be the first to close
log = logging.getLogger("service")


class Server(uvicorn.Server):
    """uvicorn runs the event loop, the application's lifespan and the signals. Connections are accepted, drained and
    closed here, within the lifespan: uvicorn would stop listening at SIGTERM, and has no limit on their number."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.backend, self.limits = backend, make_limits(settings, backend)
        self.app = allow_origins(create_app(backend, self._accept), settings.allowed_origins)
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            http=Connection,  # made by the acceptor; uvicorn would import a protocol of its own
            ws="none",
            lifespan="on",
            log_config=None,  # its lines have the format of all others
            log_level="warning" if settings.log_level == "info" else settings.log_level,  # `_announce` says it once
        )
        super().__init__(config)
        self.failed = False
        self._sockets: list[socket.socket] = []
        self._acceptor: Acceptor | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._reloading: set[asyncio.Task[None]] = set()

    def serve(self, sockets: list[socket.socket] | None = None) -> Coroutine[Any, Any, None]:
        """Serves on bound sockets, the first of which has the port of the log; uvicorn itself listens on none."""
        self._sockets = sockets or []
        return super().serve([])

    @asynccontextmanager
    async def _accept(self) -> AsyncIterator[None]:
        """Accepts connections; at the end it closes the port, and waits for the last responses."""
        self._loop = asyncio.get_running_loop()
        try:
            acceptor = self._acceptor = Acceptor(
                self._sockets,
                partial(Connection, self.app, self.limits),
                most=self.limits.most,
                reserve=RESERVE,
                give_place=self._give_place,
            )
        except OSError as error:
            host, port = self.backend.settings.host, self.backend.settings.port
            log.error("cannot listen on %s:%d (BERT_HOST, BERT_PORT): %s", host, port, error)
            self.fail()
            yield
            return
        self.limits.on_connection_lost = acceptor.on_connection_lost
        self.limits.is_over = lambda: acceptor.is_over
        if not self.backend.settings.api_processes:
            watch_loop(self._loop)
        if isinstance(self.backend, ServedModel):
            self._loop.add_signal_handler(signal.SIGHUP, self._reload, self.backend)
        self._announcing = asyncio.create_task(self._announce(acceptor.sockets[0].getsockname()[1]))
        yield
        acceptor.close()
        for connection in list(self.limits.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while self.limits.connections or self.limits.tasks:  # noqa: ASYNC110 - at the end, and rarely twice
                    await asyncio.sleep(CLOSED_CHECK_SECONDS)
                await acceptor.wait_closed()

    async def _announce(self, port: int) -> None:
        """Says once that the service is ready: in the log, and to a service manager if there is one."""
        await wait_until_ready(self.backend.ready)
        if self.backend.announces:
            log.info("serving %s", describe_service(self.backend, port))
        if address := self.backend.settings.notify_socket:
            notify(address)

    def _give_place(self, reserve_is_full: bool) -> bool:
        """Closes the oldest connection without a whole head, the one that has been idle for the longest, or the oldest
        without a whole body. Those of less than MIN_IDLE_SECONDS stay; but for the first kind, where that is all there
        is."""
        before, limits = self._loop.time() - MIN_IDLE_SECONDS, self.limits
        for find in (lambda: limits.heads, self._longest_idle, lambda: limits.bodies):
            oldest: Connection | None = next(iter(find()), None)
            if oldest is not None and oldest.since < before:
                oldest.give_way()
                return True
        if reserve_is_full and limits.heads:
            next(iter(limits.heads)).give_way()
            return True
        return False

    def _longest_idle(self) -> list[Connection]:
        """The connection that has been idle for the longest; none where none is idle."""
        idle = (one for one in self.limits.connections if one.idle_since() is not None)
        longest = min(idle, key=lambda one: one.since, default=None)
        return [] if longest is None else [longest]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The first signal begins to leave, the second one ends the server at once."""
        if self.backend.leaving or self._acceptor is None:
            self.should_exit = True
        self.backend.leave()
        if self._acceptor is not None:
            self._loop.call_soon_threadsafe(self._begin_to_leave)

    def _reload(self, models: ServedModel) -> None:
        reloading = asyncio.create_task(models.reload())
        self._reloading.add(reloading)  # the loop keeps no task alive, and one that is collected has swapped half
        reloading.add_done_callback(self._reloading.discard)

    def fail(self) -> None:
        """Ends the server, with an exit code of 1."""
        self.failed = self.should_exit = True

    def _begin_to_leave(self) -> None:
        if self._leaving is not None:
            return
        self.limits.closing = True
        for connection in self.limits.connections:
            connection.close_after_response()
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Serves for BERT_LINGER_SECONDS, then finishes the requests that have arrived and refuses later ones."""
        settings = self.backend.settings
        await asyncio.sleep(settings.linger_seconds)
        self.backend.drain()
        if self.limits.tasks:
            await asyncio.wait(self.limits.tasks, timeout=settings.drain_seconds)
        self.backend.cancel_pending()
        await asyncio.sleep(AFTER_DRAIN_SECONDS)
        for listener in self._sockets:
            begin_no_connection(listener.fileno())
        await asyncio.sleep(LAST_CONNECTIONS_SECONDS)
        self.should_exit = True


def describe_service(backend: Backend, port: int) -> str:
    """The model and where it is served; `port` is that of the first socket."""
    settings, manifest = backend.settings, backend.artifact.manifest
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    apis = f", {settings.api_processes} API processes" if settings.api_processes else ""
    admin = f"; /metrics, /info and /docs are on port {settings.admin_port}" if settings.admin_port else ""
    model = f"{manifest.name} ({manifest.family}, {manifest.precision}, {manifest.device}{apis})"
    model = ", ".join([model, *list(backend.group)[1:]])
    return f"{model} on http://{host}:{settings.port or port}{admin}"


def make_limits(settings: Settings, backend: Backend) -> ConnectionLimits:
    return ConnectionLimits(
        client_timeout_seconds=settings.client_timeout_seconds,
        buffered=BufferedBytes(BODIES * max(settings.max_body_bytes, LEAST_BODY_BYTES)),
        on_rejected=partial(backend.metrics.refused, UNKNOWN),
        log_access=log_access if settings.access_log else None,
        keep_alive_seconds=KEEP_ALIVE_SECONDS,
        most=settings.max_connections,
        probes=frozenset(PROBE_PATHS),
    )


def build(settings: Settings, backend: Backend) -> Server:
    server = Server(settings, backend)
    backend.on_fatal = server.fail
    return server


def run(server: Server, sockets: list[socket.socket]) -> int:
    """Serves on bound sockets until the server ends, and returns its exit code."""
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    gc.set_threshold(COLLECT_AFTER)
    raise_open_file_limit()
    server.run(sockets=sockets)
    if server.backend.tracing is not None:
        server.backend.tracing.close()
    return 1 if server.failed else 0


def raise_open_file_limit() -> None:
    """Raises the soft limit to the hard one: at the usual 1,024, further connections are reset."""
    with suppress(ValueError, OSError):  # not every system permits it
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
