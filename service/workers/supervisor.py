"""Starts, restarts and stops the workers of one service: one engine worker, and several API workers on one port."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from packbert.service.address import BACKLOG, ListenError
from packbert.service.artifact import Artifact
from packbert.service.settings import Settings
from packbert.service.workers.child import (
    INTERVAL_SECONDS,
    LOAD_FAILED,
    MAX_MISSED,
    WorkerSpec,
    engine_socket,
    metrics_dir,
    open_pipe,
    private_folder,
    wait_for_loss,
)

STABLE_AFTER_SECONDS = 10.0  # a worker that ran so long is not in a crash loop
FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 30.0
MAX_API_DELAY_SECONDS = 2.0  # shorter, because connections wait in the worker's backlog
STOP_GRACE_SECONDS = 10.0  # beyond the drain time, before SIGKILL
log = logging.getLogger("service")


@dataclass(slots=True)
class Backoff:
    """The delay before a restart: none after a long run or the first short one, then doubling with each short run."""

    max_seconds: float = MAX_DELAY_SECONDS
    short_runs: int = 0  # in a row

    def next_delay(self, ran_seconds: float) -> float:
        self.short_runs = 0 if ran_seconds >= STABLE_AFTER_SECONDS else self.short_runs + 1
        return 0.0 if self.short_runs < 2 else min(self.max_seconds, FIRST_DELAY_SECONDS * 2.0 ** (self.short_runs - 2))


@dataclass(slots=True, eq=False)
class Child:
    """A worker and its current process."""

    module: str
    spec: WorkerSpec
    heartbeat: int  # read end of the pipe
    backoff: Backoff
    process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"{self.spec.name} (process {self.process.pid})" if self.process else self.spec.name

    async def run_once(self) -> int:
        """The exit code of one process, negative where a signal ended it. Raises OSError where it cannot be started."""
        spec = self.spec
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.module, spec.argument),
            pass_fds=spec.descriptors,
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which stops its workers in order
        )
        watch = asyncio.create_task(self._kill_when_hung())
        try:
            return await self.process.wait()
        finally:
            watch.cancel()

    async def _kill_when_hung(self) -> None:
        """SIGKILL, because an event loop that hangs does not handle SIGTERM."""
        await wait_for_loss(self.heartbeat)
        log.error("%r sent no heartbeat for %g s: sending SIGKILL", self, MAX_MISSED * INTERVAL_SECONDS)
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@dataclass(slots=True, eq=False)
class Supervisor:
    """Keeps all sockets open: a connection that arrives while a worker restarts waits for the replacement."""

    engine: Child
    apis: list[Child]
    listeners: list[socket.socket]
    stop_seconds: float  # in which an API worker lingers and drains
    can_swap: bool = False
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _code: int = 0

    async def run(self) -> int:
        """The exit code: 0 after a signal, 1 where the model could not be loaded or a worker had to be killed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self.can_swap:
            loop.add_signal_handler(signal.SIGHUP, self._signal_apis, signal.SIGHUP)
        tasks = {child: asyncio.create_task(self._restart_loop(child)) for child in (self.engine, *self.apis)}
        await self._stopping.wait()
        for listener in self.listeners:
            listener.close()
        await self._stop({child: tasks[child] for child in self.apis}, self.stop_seconds + STOP_GRACE_SECONDS)
        await self._stop({self.engine: tasks[self.engine]}, STOP_GRACE_SECONDS)
        return self._code

    def _on_signal(self, number: int) -> None:
        """The first signal stops everything in order; a further one is passed on, and the API workers end at once."""
        if self._stopping.is_set():
            self._signal_apis(number)
        self._stopping.set()

    def _signal_apis(self, number: int) -> None:
        for child in self.apis:
            child.send_signal(number)

    async def _restart_loop(self, child: Child) -> None:
        """Keeps a process of `child` running until the supervisor stops."""
        first = True
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                code = await child.run_once()
            except OSError as error:
                log.error("%r cannot be started: %s", child, error)
                code = 1
            if self._stopping.is_set():
                return
            if first and child is self.engine and code == LOAD_FAILED:
                self._fail()
                return
            first = False
            delay = child.backoff.next_delay(time.monotonic() - started)
            log.error("%r has ended with code %d: restarting in %.2f s", child, code, delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _stop(self, children: "dict[Child, asyncio.Task[None]]", timeout_seconds: float) -> None:
        """SIGTERM to all, then SIGKILL to those that have not ended in time."""
        for child in children:
            child.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(children.values(), timeout=timeout_seconds)
        for child, task in children.items():
            if task in late:
                log.error("%r does not end: sending SIGKILL", child)
                child.send_signal(signal.SIGKILL)
                self._fail()
        if late:
            await asyncio.wait(late)

    def _fail(self) -> None:
        self._code = 1
        self._stopping.set()


def supervise(settings: Settings, artifacts: Sequence[Artifact], *, degraded: str) -> int:
    """Runs the service until a signal or a failure ends it; the exit code."""
    try:
        host, count, admin_port = settings.host, settings.api_processes, settings.admin_port
        listeners = bind_listeners(host, settings.port, count, "BERT_PORT")
        admin_listeners = bind_listeners(host, admin_port, count, "BERT_ADMIN_PORT") if admin_port else []
    except ListenError as error:
        log.error("%s", error)
        return 1
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(private_folder())
            engine_listener = bind_engine_socket(folder)
        except OSError as error:
            log.error("cannot create a folder with the engine's socket (TMPDIR): %s", error)
            return 1
        lifeline, lifeline_write_end = os.pipe()  # the system closes the write end, however this process ends

        def create_child(module: str, name: str, delay: float, *sockets: socket.socket | None) -> Child:
            read_end, write_end = open_pipe()
            names = ("listener", "admin_listener")
            descriptors = {key: each.fileno() for key, each in zip(names, sockets, strict=False) if each is not None}
            descriptors |= {"lifeline": lifeline, "heartbeat": write_end}
            spec = WorkerSpec(
                name=name,
                folder=str(folder),
                models={one.manifest.name: str(one.folder.parent) for one in artifacts},
                device=artifacts[0].manifest.device,
                degraded=degraded,
                **descriptors,
            )
            return Child(f"{__package__}.{module}", spec, read_end, Backoff(delay))

        engine = create_child("engine_worker", "engine", MAX_DELAY_SECONDS, engine_listener)
        apis = [
            create_child("api_worker", f"api-{number}", MAX_API_DELAY_SECONDS, *pair)
            for number, pair in enumerate(zip_longest(listeners, admin_listeners))
        ]
        port = listeners[0].getsockname()[1]
        log.info("starting %d API workers for port %d and an engine worker", len(apis), port)
        stop_seconds = settings.linger_seconds + settings.drain_seconds
        sockets = [*listeners, *admin_listeners]
        code = asyncio.run(Supervisor(engine, apis, sockets, stop_seconds, settings.can_swap).run())
    os.close(lifeline_write_end)
    return code


def bind_engine_socket(folder: Path) -> socket.socket:
    """The engine's socket, in a folder that also receives the metrics of all workers."""
    metrics_dir(folder).mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(engine_socket(folder)))
    listener.listen(BACKLOG)
    return listener


def bind_listeners(host: str, port: int, count: int, variable: str) -> list[socket.socket]:
    """One socket for each API worker, all on one port: the kernel distributes new connections evenly among them.

    On one shared socket, the first process to wake accepts all waiting connections: of 32 connections opened at once,
    one of two processes got nearly all. Raises ListenError, which names `variable`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # without SO_REUSEPORT, so that binding fails where another service has the port
        with socket.create_server((host, port), family=family) as probe:
            port = port or probe.getsockname()[1]
        listeners = [
            socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True) for _ in range(count)
        ]
    except OSError as error:
        raise ListenError(host, port, variable, error) from None
    for listener in listeners:
        listener.setblocking(False)
    return listeners
