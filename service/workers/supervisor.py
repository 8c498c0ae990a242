"""Several whole services behind one port: accepts connections for them, restarts them, and orders their swaps."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import Any

from ..address import BACKLOG, begin_no_connection, notify
from ..engine.cpu import available_cores
from ..settings import Settings, variables_with
from .channel import BEAT_SECONDS, WORKER, Channel, SwappedModels, WorkerSpec, take_connection

STABLE_AFTER_SECONDS = 10.0  # a worker that ran so long is not in a crash loop
FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 30.0
STOP_GRACE_SECONDS = 10.0  # beyond the drain time, before SIGKILL
FIRST_BEAT_SECONDS = 60.0  # imports are slow on a cold disk
LATE_BEATS = 3  # missed in a row: others get the connections that the worker has not accepted
MISSED_BEATS = 50  # in a row; a worker that misses so many hangs
ACCEPTS_PER_TURN = 32
COUNT_SECONDS = 1.0  # for the workers to write down what they count
LOOK_AGAIN_SECONDS = 0.01  # while no worker can take a connection
log = logging.getLogger("service")


@dataclass(slots=True)
class Backoff:
    """The delay before a restart: none after a long run or the first short run, then doubling with each short run."""

    short_runs: int = 0  # in a row

    def next_delay(self, ran_seconds: float) -> float:
        self.short_runs = 0 if ran_seconds >= STABLE_AFTER_SECONDS else self.short_runs + 1
        if self.short_runs < 2:
            return 0.0
        return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** (self.short_runs - 2))


@dataclass(slots=True, eq=False)
class Worker:
    """A whole service and its current process."""

    name: str
    ends: tuple[socket.socket, socket.socket]  # for connections: the supervisor's, and that of the process
    cores: list[int]
    backoff: Backoff = field(default_factory=Backoff)
    process: asyncio.subprocess.Process | None = None
    channel: Channel = field(default_factory=Channel)  # to the process, while it runs
    connections: int = 0  # as it said last, and those handed to it since
    is_late: bool = False  # with saying so
    is_ready: bool = False  # answers the connections that it gets
    is_leaving: bool = False  # accepts no more

    def __repr__(self) -> str:
        return f"{self.name} (process {self.process.pid})" if self.process else self.name

    @property
    def is_running(self) -> bool:
        return self.channel.send is not None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Supervisor:
    """Keeps the listening sockets: a connection goes to the worker with the fewest, of those that serve."""

    def __init__(self, settings: Settings, listeners: Sequence[socket.socket], report: Callable[[str], None]) -> None:
        """`report` shows the fault for which a worker does not start."""
        self.settings, self.listeners, self._report = settings, listeners, report
        shares = share_cores(settings.workers)
        self.workers = [Worker(f"worker-{number}", socket.socketpair(), cores) for number, cores in enumerate(shares)]
        # unnamed files: they outlive a worker, and end with the service
        self.counts = {worker.name: (open_file(), open_file()) for worker in self.workers}
        self.models: SwappedModels = {}
        self.code = 0
        self._turn, self._stopping = asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._served = False  # a worker has served
        self._announced = False  # all have served at the same time

    async def run(self) -> int:
        """The exit code: that of the first worker which ends before any has served, else 0 after a signal, and 1 if a
        worker had to be killed at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self.settings.can_swap:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        for listener in self.listeners:
            listener.listen(BACKLOG)
            listener.setblocking(False)
            self._accept_from(listener)
        running = [asyncio.create_task(self._keep_running(worker)) for worker in self.workers]
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        if not self._stopping.is_set():  # an error of our own, which the end raises: no worker is left alone
            self._on_signal(signal.SIGTERM)
        seconds = self.settings.linger_seconds + self.settings.drain_seconds + STOP_GRACE_SECONDS
        _, late = await asyncio.wait(running, timeout=seconds)
        for worker in self.workers if late else ():
            if worker.is_running:
                log.error("%r does not end: sending SIGKILL", worker)
                worker.signal(signal.SIGKILL)
                self.code = 1
        await asyncio.gather(*running)
        return self.code

    def _on_signal(self, number: int) -> None:
        """All workers get each signal: the first lets them drain, the second ends them."""
        self._stopping.set()
        for worker in self.workers:
            worker.signal(number)

    def _reload(self) -> None:
        """All workers take the shares of BERT_MODELS, and the first swaps the models that changed."""
        for number, worker in enumerate(worker for worker in self.workers if worker.is_ready):
            worker.channel.tell(reload=number == 0)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _keep_running(self, worker: Worker) -> None:
        """Restarts the worker's process until the service stops."""
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(worker)
            worker.channel.end()
            worker.is_ready, worker.is_late, worker.connections = False, False, 0
            self._hand_over(worker)
            self._check_leaving()
            if not self._served and not self._stopping.is_set():  # its error is that of the service
                self.code = code if code > 0 else 1
                self._on_signal(signal.SIGTERM)
            if self._stopping.is_set():
                return
            delay = worker.backoff.next_delay(time.monotonic() - started)
            log.error("%r has ended with code %d: restarting in %.2f s", worker, code, delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _run_once(self, worker: Worker) -> int:
        """The exit code of one process, negative if a signal ended it."""
        ours, theirs = socket.socketpair()
        spec = WorkerSpec(
            name=worker.name,
            address=[*self.listeners[0].getsockname()[:2]],
            channel=theirs.fileno(),
            connections=worker.ends[1].fileno(),
            counts=self.counts,
            models=self.models,
            cores=worker.cores,
        )
        threads = self.settings.threads or max(1, available_cores() // len(self.workers))
        try:
            worker.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "packbert.service", WORKER, json.dumps(asdict(spec))),
                pass_fds=[spec.channel, spec.connections, *chain(*self.counts.values())],
                env=variables_with(BERT_THREADS=str(threads)),
                start_new_session=True,  # Ctrl-C reaches the supervisor only, which stops its workers
            )
        except OSError as error:
            log.error("%s cannot be started: %s", worker.name, error)
            ours.close()
            return 1
        finally:
            theirs.close()
        reader, lines = await asyncio.open_connection(sock=ours)
        worker.channel.send = lines.write
        if self._stopping.is_set():
            worker.signal(signal.SIGTERM)
        for each in self.workers:
            each.channel.tell(processes={one.name: one.process.pid for one in self.workers if one.process})
        try:
            await self._listen(worker, reader)
        finally:
            lines.close()
        return await worker.process.wait()

    async def _listen(self, worker: Worker, reader: asyncio.StreamReader) -> None:
        """Does what the process says until it ends; SIGKILL if it says nothing: a loop that hangs takes no SIGTERM."""
        patience, missed = FIRST_BEAT_SECONDS, 0
        while missed * BEAT_SECONDS < patience:
            try:
                line = await asyncio.wait_for(reader.readline(), LATE_BEATS * BEAT_SECONDS)
            except TimeoutError:
                missed += LATE_BEATS
                worker.is_late = True
                if worker.is_ready:
                    self._hand_over(worker)
                continue
            except ConnectionResetError:  # it was killed, and has not read all that it was told
                return
            if not line.endswith(b"\n"):
                return
            patience, missed = MISSED_BEATS * BEAT_SECONDS, 0
            worker.is_late = False
            for kind, value in worker.channel.read(line):
                self._on_message(worker, kind, value)
        log.error("%r has said nothing for %g s: sending SIGKILL", worker, patience)
        worker.signal(signal.SIGKILL)

    def _on_message(self, worker: Worker, kind: str, value: Any) -> None:
        if kind == "connections":
            worker.connections = value
        elif kind == "ready":
            self._on_ready(worker, value)
        elif kind == "fault" and not self._served and not self._stopping.is_set():
            self._report(value)
        elif kind in ("swap", "scraped"):
            self._start(self._swap(worker) if kind == "swap" else self._count(worker))
        elif kind == "leaving":
            worker.is_leaving = True
            self._check_leaving()

    def _on_ready(self, worker: Worker, about: str) -> None:
        """The first time that all workers serve, it is announced: `about` describes what they serve."""
        worker.is_ready = self._served = True
        if not self._announced and not all(one.is_ready for one in self.workers):
            return
        for one in self.workers:
            one.channel.tell(all_serve=True)
        if not self._announced:
            self._announced = True
            log.info("serving %s, with %d workers", about, len(self.workers))
            if address := self.settings.notify_socket:
                notify(address)

    async def _swap(self, worker: Worker) -> None:
        """Gives the worker its turn to swap; the others take over what then answers, and those that start get it."""
        async with self._turn:
            if not worker.is_running:
                return
            if changed := await worker.channel.ask("swapped", turn=True):
                self.models |= changed
                others = [one.channel for one in self.workers if one is not worker and one.is_running]
                await asyncio.gather(*[one.ask("followed", follow=changed) for one in others])
            worker.channel.tell(done=True)

    async def _count(self, worker: Worker) -> None:
        """Lets the other workers write down their counts, except for a worker that hangs."""
        others = [one.channel for one in self.workers if one is not worker and one.is_ready]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*[one.ask("counted", count=True) for one in others]), COUNT_SECONDS)
        worker.channel.tell(all_counted=True)

    def _accept_from(self, listener: socket.socket, held: socket.socket | None = None) -> None:
        """Accepts its connections from now on; hands on `held` first."""
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)
        if held is not None:
            self._accept(listener, held)

    def _accept(self, listener: socket.socket, held: socket.socket | None = None) -> None:
        """Hands on the connections that wait; tries again in a moment if it can accept none, or no worker takes one."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                held = held or listener.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is free, or no memory
                log.error("no connection can be accepted: %s", error)
                break
            if not self._hand(held):
                break
            held.close()
            held = None
        else:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        loop.call_later(LOOK_AGAIN_SECONDS, self._accept_from, listener, held)

    def _hand(self, connection: socket.socket) -> bool:
        """Whether a worker takes it: of those that serve, else of those that load and answer 503; the late come last.

        Until all have served once it is the other way round: clients that come early would all stay with the first.
        """

        def rank(one: Worker) -> tuple[bool, bool, int]:
            return (one.is_ready and not one.is_leaving) != self._announced, one.is_late, one.connections

        for worker in sorted((one for one in self.workers if one.is_running), key=rank):
            with suppress(OSError):  # it has not taken the earlier ones
                socket.send_fds(worker.ends[0], [b"c"], [connection.fileno()], socket.MSG_DONTWAIT)
                worker.connections += 1
                return True
        return False

    def _hand_over(self, worker: Worker) -> None:
        """Hands the connections that a worker has not accepted, because it has ended or hangs, to others that serve."""
        if not any(one.is_ready and not one.is_late for one in self.workers):
            return
        waiting = []
        with suppress(OSError):
            while True:
                waiting.append(take_connection(worker.ends[1]))
        for connection in waiting:
            with connection:
                self._hand(connection)

    def _check_leaving(self) -> None:
        """When no worker would accept a further connection, none begins."""
        if self._stopping.is_set() and all(one.is_leaving or not one.is_running for one in self.workers):
            for listener in self.listeners:
                begin_no_connection(listener)


def share_cores(count: int) -> list[list[int]]:
    """The cores of each worker: neighbours, which share caches; empty if there are too few, or a quota."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(allowed) < count or available_cores() < len(allowed):
        return [[] for _ in range(count)]
    ends = [number * len(allowed) // count for number in range(count + 1)]
    return [allowed[first:end] for first, end in pairwise(ends)]


def open_file() -> int:
    """The descriptor of a file without a name, which only workers inherit."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
