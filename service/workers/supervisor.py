"""One engine process and several API processes behind one port: starts them, starts them again when they die, ends them in order.

Knows processes, signals and sockets; serves nobody itself. All sockets are bound once and stay open as long as the service: a connection
that arrives while a child is being replaced waits for its successor.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from service.metrics import COUNTS_VARIABLE
from service.settings import Settings, variables_with
from service.workers.child import LOAD_FAILED, WorkerSpec, metrics_dir, socket_in
from service.workers.heartbeat import BEAT_SECONDS, MISSED, pipe, wait_for_loss

ENGINE = "engine"
BACKLOG = 2048
STEADY_SECONDS = 10.0  # who lives that long is not in a crash loop
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_API_PAUSE_SECONDS = 2.0  # connections wait for it meanwhile
GRACE_SECONDS = 10.0  # beyond the drain, for a child to end by itself
log = logging.getLogger("service")


@dataclass(slots=True)
class Backoff:
    """How long a child's successor has to wait: not at all after a long life, longer and longer after short ones."""

    longest_seconds: float = LONGEST_PAUSE_SECONDS
    short_lives: int = 0  # in a row

    def after(self, lived_seconds: float) -> float:
        if lived_seconds >= STEADY_SECONDS:
            self.short_lives = 0
            return 0.0
        self.short_lives += 1
        return (
            0.0
            if self.short_lives == 1
            else min(self.longest_seconds, FIRST_PAUSE_SECONDS * 2.0 ** (self.short_lives - 2))
        )


@dataclass(slots=True, eq=False)
class Child:
    """A place and the process that holds it."""

    module: str
    post: WorkerSpec
    pulse: int  # the other end of the post's
    backoff: Backoff
    process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"{self.post.name} (process {self.process.pid})" if self.process else self.post.name

    async def live(self) -> int:
        """One life of it; its exit code, negative where a signal ended it. Raises OSError where the machine has no room for a process."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.module,
            self.post.argument,
            pass_fds=(self.post.listener, self.post.lifeline, self.post.pulse),
            env=variables_with(**{COUNTS_VARIABLE: str(metrics_dir(Path(self.post.folder)))}),
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends its children in order
        )
        watch = asyncio.create_task(self._watch())
        try:
            return await self.process.wait()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        """A loop that does not turn would never heed SIGTERM."""
        await wait_for_loss(self.pulse)
        log.error("%r hangs: nothing was heard of it for %g s; it is killed", self, MISSED * BEAT_SECONDS)
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@dataclass(slots=True, eq=False)
class Supervisor:
    engine: Child
    apis: list[Child]
    listeners: list[socket.socket]
    drain_seconds: float
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _code: int = 0

    async def run(self) -> int:
        """The exit code: 0 after a signal, 1 where the model could not be loaded or a child had to be killed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        keepers = {child: asyncio.create_task(self._keep(child)) for child in (self.engine, *self.apis)}
        await self._ending.wait()
        for listener in self.listeners:
            listener.close()
        await self._end([(child, keepers[child]) for child in self.apis], self.drain_seconds + GRACE_SECONDS)
        await self._end([(self.engine, keepers[self.engine])], GRACE_SECONDS)
        return self._code

    def _signalled(self, number: int) -> None:
        """The first signal ends everything in order; another one is passed on, and the API processes end now."""
        if self._ending.is_set():
            for child in self.apis:
                child.signal(number)
        self._ending.set()

    async def _keep(self, child: Child) -> None:
        """A process in its place until the end."""
        first = True
        while not self._ending.is_set():
            started = time.monotonic()
            try:
                code = await child.live()
            except OSError as error:
                log.error("%r cannot be started: %s", child, error)
                code = 1
            if self._ending.is_set():
                return
            if first and child is self.engine and code == LOAD_FAILED:
                self._fail()
                return
            first = False
            pause = child.backoff.after(time.monotonic() - started)
            log.error("%r has ended with code %d; its successor starts in %.2f s", child, code, pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Shorter where the end comes first."""
        await asyncio.wait((asyncio.ensure_future(self._ending.wait()),), timeout=seconds)

    async def _end(self, children: list[tuple[Child, "asyncio.Task[None]"]], patience_seconds: float) -> None:
        """SIGTERM, and SIGKILL for who does not heed it."""
        for child, _ in children:
            child.signal(signal.SIGTERM)
        _, late = await asyncio.wait([keeper for _, keeper in children], timeout=patience_seconds)
        for child, keeper in children:
            if keeper in late:
                log.error("%r does not end: it is killed", child)
                child.signal(signal.SIGKILL)
                self._fail()
        if late:
            await asyncio.wait(late)

    def _fail(self) -> None:
        self._code = 1
        self._ending.set()


def supervise(settings: Settings, *, device: str, degraded: str) -> int:
    """The exit code."""
    lifeline, held = os.pipe()  # `held` is closed when this process ends, however it ends
    try:
        listeners = listen(settings.host, settings.port, settings.api_processes)
    except OSError as error:
        log.error("cannot listen on %s:%d (BERT_HOST, BERT_PORT): %s", settings.host, settings.port, error)
        return 1
    try:
        private = tempfile.TemporaryDirectory(prefix="bert-service-", ignore_cleanup_errors=True)  # for this user only
    except OSError as error:
        log.error("cannot make a folder for what the processes share: %s (TMPDIR)", error)
        return 1
    with private as folder:
        try:
            engine_listener = private_listener(Path(folder))
        except OSError as error:
            log.error("cannot make the engine's socket in %s: %s (TMPDIR)", folder, error)
            return 1

        def child(module: str, name: str, accepts_on: socket.socket, longest: float) -> Child:
            heard, pulse = pipe()
            post = WorkerSpec(
                name=name,
                folder=folder,
                device=device,
                degraded=degraded,
                listener=accepts_on.fileno(),
                lifeline=lifeline,
                pulse=pulse,
            )
            return Child(module, post, heard, Backoff(longest))

        engine = child("service.workers.engine_worker", ENGINE, engine_listener, LONGEST_PAUSE_SECONDS)
        apis = [
            child("service.workers.api_worker", f"api-{number}", listener, LONGEST_API_PAUSE_SECONDS)
            for number, listener in enumerate(listeners)
        ]
        log.info(
            "serving on http://%s:%d in %d API processes and an engine",
            settings.host,
            listeners[0].getsockname()[1],
            len(apis),
        )
        code = asyncio.run(Supervisor(engine, apis, listeners, settings.drain_seconds).run())
    os.close(held)
    return code


def private_listener(folder: Path) -> socket.socket:
    """The engine's socket, in a folder that holds everyone's counts as well."""
    metrics_dir(folder).mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_in(folder)))
    listener.listen(BACKLOG)
    return listener


def listen(host: str, port: int, number: int) -> list[socket.socket]:
    """So many sockets on one port, for one API process each: the kernel deals connections out to them evenly.

    On one shared socket whoever wakes first accepts all that wait: of 32 connections opened at once, one of two processes got nearly all.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server(
        (host, port), family=family
    ) as taken:  # without SO_REUSEPORT: another service's port is not shared
        port = port or taken.getsockname()[1]
    listeners = [
        socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True) for _ in range(number)
    ]
    for listener in listeners:
        listener.setblocking(False)
    return listeners
