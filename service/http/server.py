"""The server of a process: it answers from the start on, and at its end responds to every pending request."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config

from ..address import ListenError, begin_no_connection, notify, wait_until_ready
from ..artifact import ManifestError
from ..errors import LOADING, SHUTTING_DOWN, DeviceError, Unavailable
from ..logs import log_access
from ..model_cache import Source
from ..models import Models
from ..observability.metrics import Metrics, StateCollector, render
from ..observability.series import UNKNOWN
from ..prepare import end_exports, exporters, prepare_model
from ..settings import Settings
from .app import (
    PROBE_PATHS,
    TASKS,
    add_error_handlers,
    add_operational_routes,
    allow_origins,
    create_app,
    serve_ports,
)
from .body import start_thread
from .connection import Connection
from .dialects import kserve, root
from .endpoint import TaskEndpoint
from .headers import ApiKeys
from .limits import BODIES, LEAST_BODY_BYTES, Acceptor, BufferedBytes, ConnectionLimits

AFTER_DRAIN_SECONDS = 1.0  # keep listening: a client that sends its next request after its answer gets 503, no reset
LAST_CONNECTIONS_SECONDS = 0.5  # before the port closes: for handshakes under way, and the requests that follow them
FLUSH_SECONDS = 5  # after the drain, for the last responses to be sent
CLOSED_CHECK_SECONDS = 0.02
RETRY_SECONDS = 10.0  # while a model is exported
LOOP_CHECK_SECONDS = 1.0
MAX_MISSED = 20  # checks of the loop in a row
LAST_WORDS_SECONDS = 2.0  # a stderr that nobody reads takes none: it may be what the loop hangs at
STDERR = 2
# While a thread tokenizes, the default of 0.005 delays the inference thread by 3 ms; this value by 1 ms.
GIL_SWITCH_SECONDS = 0.0005
# Allocations between two garbage collections. No response or connection leaves cycles, so a collection only walks
# through what is in flight: with 1,000 connections twice in 6 s, for 4 to 8 ms. At the default of 700 that took a tenth
# of the loop's time, at 50,000 it was a single turn of 16 to 31 ms.
COLLECT_AFTER = 20_000
INTERRUPTED = 130  # exit code of a start that SIGINT ends
MakeModels = Callable[["Starting"], Awaitable[Models]]
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


class Starting(logging.Handler):
    """Stands in for a model, its engine and its service; admits no request. As a handler it reads an export's log."""

    refuses, draining, degraded, tracing, group = True, False, "", None, ()
    line = ""  # the last of the log, while a model is prepared

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__()
        self.settings, self.metrics = settings, metrics
        self.models = self.current = self.artifact = self

    def emit(self, record: logging.LogRecord) -> None:
        self.line = record.getMessage()

    def prepare(self, settings: Settings, source: Source, device: str) -> Path:
        """Prepares the model as `prepare_model` does, and shows the log of it in the answers meanwhile."""
        self.line = "the model is being prepared"
        log.addHandler(self)
        try:
            return prepare_model(settings, source, device)
        finally:
            log.removeHandler(self)
            self.line = ""

    def refuse(self) -> NoReturn:
        """Raises Unavailable."""
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        if line := self.line:
            raise Unavailable(f"the model is not there yet: {line}", code="exporting", retry_after=RETRY_SECONDS)
        raise Unavailable(LOADING, code="loading", retry_after=2)

    def ready(self) -> str:
        if self.draining:
            return "draining"
        return f"exporting: {self.line}" if self.line else "loading"

    def info(self) -> NoReturn:
        """Raises Unavailable."""
        self.refuse()

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return render([StateCollector([], self.metrics.processes, {}), self.metrics.collector()], accept)

    def make_app(self, keys: ApiKeys) -> ASGIApp:
        app = FastAPI(openapi_url=None, redirect_slashes=False)
        stand_in: Any = self  # these routes need no more of a model
        add_operational_routes(app, stand_in)
        kserve.add_server_routes(app.router, stand_in)
        root.add_get_routes(app.router, stand_in)
        app.router.default = self._refuse  # in place of a 404
        add_error_handlers(app)
        endpoints = {path: TaskEndpoint(stand_in, spec, keys) for path, spec in TASKS.items()}
        return serve_ports({"": app}, endpoints, self.settings.admin_port, self.metrics)

    async def _refuse(self, _: Scope, __: Receive, ___: Send) -> None:
        self.refuse()


def watch_loop(loop: asyncio.AbstractEventLoop, *, check_seconds: float = LOOP_CHECK_SECONDS) -> None:
    """Starts a thread that ends the process with code 1 if the loop calls nothing back for MAX_MISSED checks.

    Time is counted in checks of its own, so that a stopped process or a suspended machine does not count. The stack of
    each thread goes to stderr. The thread ends when the loop is closed.
    """
    threading.Thread(target=_watch, args=(loop, check_seconds), daemon=True, name="loop-watchdog").start()


def _watch(loop: asyncio.AbstractEventLoop, check_seconds: float) -> None:
    while True:
        time.sleep(check_seconds)
        turned, missed = threading.Event(), 0
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # the loop is closed
            return
        while not turned.wait(check_seconds):
            if loop.is_closed():  # before it has called back
                return
            missed += 1
            if missed == MAX_MISSED:
                _end_hanging(missed * check_seconds)


def _end_hanging(seconds: float) -> None:
    """Writes the stacks, and ends the process even if nobody reads them.

    It uses neither `logging` nor `sys.stderr`, whose locks the hanging thread may hold, nor faulthandler, which waits
    for a reader with the GIL.
    """
    try:
        threading.Timer(LAST_WORDS_SECONDS, os._exit, (1,)).start()
        stacks = ["".join(traceback.format_stack(frame)) for frame in sys._current_frames().values()]
        text = f"the event loop has hung for {seconds:g} s: the process ends\n" + "\nanother thread:\n".join(stacks)
        os.write(STDERR, text.encode())
    finally:
        os._exit(1)
