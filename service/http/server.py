"""The server of a process: it answers from the start on, and at its end responds to every pending request."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from uvicorn import Config

from ..address import ListenError, begin_no_connection, notify, wait_until_ready
from ..artifact import ManifestError
from ..errors import DeviceError
from ..logs import log_access
from ..models import Models
from ..observability.metrics import Metrics
from ..observability.series import UNKNOWN
from ..prepare import end_exports, exporters
from ..settings import Settings
from .app import PROBE_PATHS, allow_origins, create_app
from .body import start_thread
from .connection import Connection
from .headers import ApiKeys
from .limits import BODIES, LEAST_BODY_BYTES, Acceptor, BufferedBytes, ConnectionLimits
from .loop_watchdog import watch_loop
from .starting import Starting

AFTER_DRAIN_SECONDS = 1.0  # keep listening: a client that sends its next request after its answer gets 503, no reset
LAST_CONNECTIONS_SECONDS = 0.5  # before the port closes: for handshakes under way, and the requests that follow them
FLUSH_SECONDS = 5  # after the drain, for the last responses to be sent
CLOSED_CHECK_SECONDS = 0.02
# While a thread tokenizes, the default of 0.005 delays the inference thread by 3 ms; this value by 1 ms.
GIL_SWITCH_SECONDS = 0.0005
# Allocations between two garbage collections. No response or connection leaves cycles, so a collection only walks
# through what is in flight: with 1,000 connections twice in 6 s, for 4 to 8 ms. At the default of 700 that took a tenth
# of the loop's time, at 50,000 it was a single turn of 16 to 31 ms.
COLLECT_AFTER = 20_000
MAX_CONNECTIONS = 1024  # of a process
RESERVE = 64  # connections over that number: only their probes are answered
INTERRUPTED = 130  # exit code of a start that SIGINT ends
MakeModels = Callable[[Starting], Awaitable[Models]]
log = logging.getLogger("service")


class Alone:
    """What the only process of a service does by itself; a worker does it together with its supervisor."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()  # the loop keeps none alive, and a swap that is collected is half

    def begin(self, server: "Server") -> None:  # noqa: ARG002 - a worker follows its supervisor's word on it
        watch_loop(asyncio.get_running_loop())

    def join(self, models: Models) -> None:
        """Called when the models are loaded."""
        if models.can_swap:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: self.start(models.reload()))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self.tasks.discard)

    def announce(self, about: str, settings: Settings) -> None:
        """Says that the service is ready, in the log and to a service manager, if any."""
        log.info("serving %s", about)
        if address := settings.notify_socket:
            notify(address)

    def leave(self, listeners: Sequence[socket.socket]) -> None:
        """Called before the listeners close."""
        for listener in listeners:
            begin_no_connection(listener)


class Server:
    """Answers from the first second to the last: `Starting` until the models are loaded, then their application."""

    def __init__(self, settings: Settings, metrics: Metrics, make: MakeModels, member: Alone | None = None) -> None:
        """`make` finds what is to be served."""
        self.settings, self.metrics, self.member = settings, metrics, member or Alone()
        self.limits = ConnectionLimits(
            buffered=BufferedBytes(BODIES * max(settings.max_body_bytes, LEAST_BODY_BYTES)),
            on_rejected=partial(metrics.refused, UNKNOWN),
            log_access=log_access if settings.access_log else None,
            most=MAX_CONNECTIONS,
            reserve=RESERVE,
            probes=frozenset(PROBE_PATHS),
        )
        self.starting, self.keys = Starting(settings, metrics), ApiKeys(settings)
        self.app = allow_origins(self.starting.make_app(self.keys), settings.allowed_origins)
        self.models: Models | None = None  # when it is open
        self.code = 0  # of the process
        self._make = make
        self.ended = asyncio.Event()  # the port closes

    async def serve(self, sockets: Sequence[socket.socket]) -> int:
        """Serves on bound sockets, the first of which has the port of the log, and returns the exit code.

        Raises ListenError, and what `make` raises.
        """
        self._sockets = sockets
        self.keys.open()
        self.member.begin(self)
        starting = asyncio.create_task(self._start(sockets[0].getsockname()[1]))
        starting.add_done_callback(self._on_started)
        try:
            acceptor = Acceptor(sockets, self.limits, lambda in_reserve: Connection(self.app, self.limits, in_reserve))
        except OSError as error:
            raise ListenError(self.settings.host, self.settings.port, "BERT_PORT", error) from None
        await self.ended.wait()
        acceptor.close()
        for connection in list(self.limits.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while self.limits.connections or self.limits.tasks:  # noqa: ASYNC110 - at the end, and rarely twice
                    await asyncio.sleep(CLOSED_CHECK_SECONDS)
        self.keys.close()
        if starting.done() and not self.limits.closing:
            starting.result()
        return self.code

    async def _start(self, port: int) -> None:
        """Finds the models, loads them, lets them answer and says so. Raises what `make` raises, and ManifestError."""
        models = await self._make(self.starting)
        models.device.on_fatal = self.fail
        try:
            start_thread()
            await models.open()
            app = await asyncio.to_thread(create_app, models, self.keys)
        except ManifestError:  # of weights that are damaged: the start ends as for any other file
            raise
        except Exception as error:
            log.error("the model cannot be loaded: %s", error, exc_info=not isinstance(error, DeviceError))
            self.fail()
            return
        if self.limits.closing:
            return
        self.models, self.app = models, allow_origins(app, self.settings.allowed_origins)
        for connection in self.limits.connections:
            connection.app = self.app
        self.member.join(models)
        await wait_until_ready(models.default.loaded)
        self.member.announce(describe_service(models, port), self.settings)

    def _on_started(self, starting: asyncio.Task[None]) -> None:
        if not self.limits.closing and not starting.cancelled() and starting.exception() is not None:
            self.ended.set()

    def fail(self) -> None:
        """Ends the server, with an exit code of 1."""
        self.code = 1
        self.ended.set()

    def leave(self) -> None:
        """Begins to end the server."""
        self.limits.closing = True
        for connection in self.limits.connections:
            connection.close_after_response()
        if self.models is not None:
            self.models.leave()
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Serves for BERT_LINGER_SECONDS, then finishes the requests that have arrived and refuses later ones."""
        if self.models is not None:
            await asyncio.sleep(self.settings.linger_seconds)
            self.models.drain()
        self.starting.draining = True
        ending: set[asyncio.Task[None]] = {*self.limits.tasks}
        if exporters:
            ending.add(asyncio.create_task(asyncio.to_thread(end_exports, self.settings.drain_seconds)))
        if ending:
            await asyncio.wait(ending, timeout=self.settings.drain_seconds)
        if self.models is not None:
            self.models.cancel_pending()
        await asyncio.sleep(AFTER_DRAIN_SECONDS)
        self.member.leave(self._sockets)
        await asyncio.sleep(LAST_CONNECTIONS_SECONDS)
        self.ended.set()


def describe_service(models: Models, port: int) -> str:
    """The model and its address; `port` is that of the first socket."""
    settings, manifest = models.settings, models.default.artifact.manifest
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    admin = f"; /metrics, /info and /docs are on port {settings.admin_port}" if settings.admin_port else ""
    model = f"{manifest.name} ({manifest.family}, {manifest.precision}, {manifest.device})"
    model = ", ".join([model, *list(models.group)[1:]])
    return f"{model} on http://{host}:{settings.port or port}{admin}"


def build(settings: Settings, models: Models) -> Server:
    """The server of models that it opens."""

    async def make(_: Starting) -> Models:
        return models

    return Server(settings, models.metrics, make)


def freeze_libraries() -> None:
    """Lets later collections skip what the imports have made. Called before a model is made: frozen, it would stay."""
    gc.collect()
    gc.freeze()


def run(server: Server, sockets: Sequence[socket.socket]) -> int:
    """Serves on bound sockets until the server ends, and returns the process's exit code. Raises as `Server.serve`.

    The first signal begins to end the server, and the second ends the process. The event loop is never closed: that
    would wait for a thread that still loads a model, or for a run that hangs.
    """
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    gc.set_threshold(COLLECT_AFTER)
    raise_open_file_limit()
    runner, stopping = asyncio.Runner(loop_factory=Config(server.app, log_config=None).get_loop_factory()), list[int]()
    loop = runner.get_loop()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stopping:
            os._exit(server.code)
        stopping.append(number)
        if number == signal.SIGINT and server.models is None:
            server.code = INTERRUPTED
        loop.call_soon_threadsafe(server.leave)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    code = runner.run(server.serve(sockets))
    if server.models is not None and server.models.tracing is not None:
        server.models.tracing.close()
    return code


def raise_open_file_limit() -> None:
    """Raises the soft limit to the hard limit: at the usual 1,024, further connections are reset."""
    with suppress(ValueError, OSError):  # not every system permits it
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
