"""The model engine: one model with its tokenizer, runner, queue, canary and tasks. It loads, serves and closes."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packbert.model_export.artifact.cpu import BF16

from ..artifact import Artifact
from ..errors import SHUTTING_DOWN, DeviceError, Unavailable
from ..observability.metrics import Metrics
from ..scheduling.batcher import Batcher
from ..scheduling.cores import SERIAL, Concurrency
from ..scheduling.queue import BULK_SHARE, RequestQueue
from ..scheduling.request import QueuedModel
from ..scheduling.watchdog import BatchReport, BusyShare, Watchdog
from ..settings import Settings
from ..tasks.flow import Tasks
from ..tokenization.tokenizer import Tokenizer
from .calibration import Calibration, golden_tokens, measure
from .canary import BATCHES_BETWEEN_CHECKS, SELF_CHECK_SECONDS, Canary, Health
from .cpu import available_cores
from .info import engine_info
from .memory import own_files, start_moving
from .runner import ModelRunner
from .session import device_memory, memory_in_use

if TYPE_CHECKING:
    from ..observability.spans import Tracing

WINDOW_BATCHES = 2  # of a request in the queue, for each batch in flight
CLOSE_GRACE_SECONDS = 5.0  # for a run that is in flight when the engine closes
PER_CORE_PRECISIONS = ("int8",)  # cheap products, for which synchronizing threads costs more than it does in fp32
MAX_COPIED_BYTES = 2**27  # of weights: up to here another copy is cheap, and fp32 batches run on one core each too
MakeRunner = Callable[[Artifact, int, Concurrency, Path | None], ModelRunner]
log = logging.getLogger("service")


class Users:
    """How many requests an engine answers; entered by each of them until its end, whatever is swapped meanwhile."""

    def __init__(self) -> None:
        self.count, self.none = 0, asyncio.Event()  # set when the last has ended

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.none.set()


@dataclass(slots=True, eq=False)
class Device:
    """What the engines of a process share: a queue and a loop that runs their batches, which the first engine makes,
    and the memory for their sessions. Nothing here keeps an engine that has been closed."""

    tracing: "Tracing | None" = None  # records the batches; None if traces are off
    on_fatal: Callable[[], None] = lambda: None  # the process should end, with an exit code of 1
    concurrency: Concurrency | None = None  # None: as it suits the first model
    engines: "list[ModelEngine]" = field(default_factory=list)  # with a batcher, and not closed
    batchers: dict[str, Batcher] = field(default_factory=dict)  # the newest of each model's name
    tokens_per_second: float = 0.0  # of the first model at the start: the unit of the queue
    # by a model's sizes, which decide how fast it is: measured beside a model that answers, both seem slower
    calibrations: dict[tuple[object, ...], Calibration] = field(default_factory=dict)
    serving: "asyncio.Task[None] | None" = None
    memory_limit: float = math.inf  # bytes, of the models in memory together
    loaded: "dict[ModelEngine, None]" = field(default_factory=dict)  # those in memory, the least recently used first
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)  # one model at a time
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)  # that load a model whose requests wait

    def fail(self, reason: str) -> None:
        for engine in self.engines:
            engine.fail(reason)

    def on_loop_done(self, serving: "asyncio.Task[None]") -> None:
        """The dispatch loop ends only when the queue is closed: an error in it must not leave requests waiting."""
        if not serving.cancelled() and (error := serving.exception()) is not None:
            log.error("the dispatch loop stopped", exc_info=error)
            self.fail(f"the dispatch loop stopped: {type(error).__name__}")

    def want(self, engine: "ModelEngine") -> None:
        """Requests wait for the model: it is loaded, while the other models answer theirs."""
        self._tasks.add(task := asyncio.create_task(engine.reload()))
        task.add_done_callback(self._tasks.discard)

    def use(self, engine: "ModelEngine") -> None:
        """The model has run a batch. A model that is opened or checked, but never used, is the first to be put out."""
        if engine in self.loaded:
            del self.loaded[engine]
            self.loaded[engine] = None

    async def load(self, engine: "ModelEngine") -> None:
        """Raises what loading raises."""
        await engine.load(partial(self._make_room, engine))
        await self._make_room(engine)  # the first load has measured what it takes
        self.loaded = {engine: None} | self.loaded
        self.show(engine)

    async def _make_room(self, engine: "ModelEngine") -> None:
        """Puts out the least recently used models until `engine` fits, each when its batches in progress have ended."""
        while self.loaded and engine.memory_bytes + sum(one.memory_bytes for one in self.loaded) > self.memory_limit:
            oldest = next(iter(self.loaded))
            del self.loaded[oldest]
            await oldest.put_out()
            self.show(oldest)

    def show(self, engine: "ModelEngine") -> None:
        """Sets the gauge of the model's name, which two engines have during a swap."""
        name = engine.artifact.manifest.name
        engine.metrics.in_memory(name, any(one.artifact.manifest.name == name for one in self.loaded))


@dataclass(slots=True, eq=False)
class ModelEngine:
    """`open` loads it, a request enters `users` while it runs `tasks`, `close` ends it; `readiness` says at any time
    whether a request would be answered."""

    artifact: Artifact
    settings: Settings
    metrics: Metrics
    make_runner: MakeRunner = ModelRunner
    self_check_seconds: float = SELF_CHECK_SECONDS
    device: Device = field(default_factory=Device)
    calibration: Calibration | None = None
    memory_bytes: int = 0  # as measured by the first load; before that, the size of its weights
    users: Users = field(default_factory=Users)
    _batches: int = 0  # that it has run
    health: Health = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    runner: ModelRunner = field(init=False)
    batcher: Batcher = field(init=False)
    tasks: Tasks = field(init=False)  # when it is open
    _canary: Canary = field(init=False)
    _checking: asyncio.Task[None] = field(init=False)
    _moving: threading.Thread | None = None  # weights to huge pages

    def __post_init__(self) -> None:
        tolerance = self.artifact.manifest.canary.tolerance
        self.health = Health(tolerance=tolerance)
        self.memory_bytes = self.artifact.weights.stat().st_size
        self.tokenizer = Tokenizer(self.artifact, self.settings.max_characters, self.metrics.tokenizing)

    async def open(self) -> None:
        """Raises what loading raises: a tokenizer or a graph that does not load, a self-test that fails."""
        await asyncio.to_thread(self.tokenizer.open)
        threads, device = self.settings.threads or available_cores(), self.device
        device.concurrency = device.concurrency or concurrency_for(self.artifact, threads)
        limit = self.settings.memory_limit
        device.memory_limit = math.inf if limit is None else limit
        self.runner = self.make_runner(self.artifact, threads, device.concurrency, self._shared_folder())
        async with device.loading:
            await device.load(self)
        assert self.calibration is not None
        self.batcher = self._make_batcher(self.calibration)
        self._canary = self._make_canary()
        device.engines.append(self)
        provider, degraded = self.runner.provider, bool(self.artifact.degraded)
        if device.serving is None:
            memory = device_memory if self.artifact.manifest.device == "cuda" else None
            self.metrics.observe_queue(device.batchers, provider, degraded=degraded, device_memory=memory)
            device.serving = asyncio.create_task(self.batcher.dispatcher.serve())
            device.serving.add_done_callback(device.on_loop_done)
        self._checking = asyncio.create_task(self._canary.run())
        await self._canary.check()
        self.tasks = self._make_tasks()
        self.health.loading = False
        log.info("ready: %s on %s, %d threads; %s", self.artifact.manifest.name, provider, threads, self.calibration)
        for what, why in self.artifact.manifest.assumed.items():
            log.info("%s assumes %s: %s", self.artifact.manifest.name, what, why)

    def readiness(self) -> str:
        """Why a request would not be answered now; empty if it would."""
        return self.health.reason or self.batcher.suspended

    def info(self) -> dict[str, Any]:
        """The content of /info, when it is open."""
        assert self.calibration is not None
        return engine_info(self.artifact, self.settings, self.runner.provider) | {
            "degraded": self.artifact.degraded or None,
            "threads": self.runner.threads,
            "in_memory": self in self.device.loaded,
            "memory_bytes": self.memory_bytes,
            "measured": asdict(self.calibration),
            "status": self.readiness() or "ready",
            "mask_token": self.tokenizer.mask_token,
            "workers": self.settings.workers,
        }

    def fail(self, reason: str) -> None:
        """Final: all requests get 503, and the process is to end so that its supervisor starts another."""
        if self.health.fault:
            return
        self.health.fault = reason
        log.critical("giving up: %s", reason)
        self.batcher.fail_all(reason)
        self.device.on_fatal()

    def _on_dead(self, reason: str) -> None:
        """A new process is the cure; but while other models answer, only the requests of this model get 503."""
        if len(self.device.engines) == 1:
            self.fail(reason)
        self.health.wrong = True  # until a canary is right again

    async def close(self) -> None:
        """Waits for a run in flight, but not for a run that hangs; requests that still wait get 503."""
        self.health.draining = True
        if self in self.device.engines:
            await self._leave_device()
        self.tokenizer.close()

    async def _leave_device(self) -> None:
        device = self.device
        assert device.serving is not None
        device.engines.remove(self)
        self._checking.cancel()
        if device.engines:
            self.batcher.suspend(SHUTTING_DOWN)
            async with device.loading:  # not while it is loaded
                device.loaded.pop(self, None)
            device.show(self)
        else:
            self.batcher.close(SHUTTING_DOWN)
            background = (device.serving, self._checking)
            await asyncio.wait(background, timeout=0 if self.health.fault else CLOSE_GRACE_SECONDS)
            self.batcher.fail_all(SHUTTING_DOWN)
        await asyncio.to_thread(self._close_runner)  # it takes 25 to 44 ms for BERT-base
        self.batcher.dispatcher.batchers.pop(self.batcher.model)

    def _shared_folder(self) -> Path | None:
        """The place of the weights that workers share. Raises DeviceError if this user has no home."""
        settings, manifest = self.settings, self.artifact.manifest
        if settings.workers == 1 or manifest.device != "cpu" or manifest.precision == BF16:
            return None
        try:
            return settings.cache_folder / "packed"
        except RuntimeError as error:
            raise DeviceError(f"BERT_CACHE: it has no default here ({error}): set it to a folder") from error

    async def load(self, make_room: Callable[[], Awaitable[None]]) -> None:
        """Opens the sessions; the first time with what a start measures. `make_room` is called when the files are good.

        Raises Unavailable if the engine is closed, and what `own_files` and opening raise.
        """
        if self.calibration is not None and self not in self.device.engines:
            raise Unavailable(SHUTTING_DOWN)
        began, files = time.monotonic(), own_files(self.artifact, self.runner.shared)
        with ExitStack() as stack:
            folder = await asyncio.to_thread(stack.enter_context, files)
            await make_room()
            await asyncio.to_thread(self._load, folder, stack.pop_all())
        if self.artifact.manifest.device == "cpu":
            self._moving = start_moving()
        self.metrics.loaded(self.artifact.manifest.name, time.monotonic() - began)

    async def put_out(self) -> None:
        """Lets go of the sessions until the next `load`, when no batch is in progress; all else stays."""
        if self in self.device.engines:
            self._checking.cancel()  # a check that waits would load it again
            self._checking = asyncio.create_task(self._canary.run())
            await self.batcher.hold()
        await asyncio.to_thread(self._close_runner)

    def _close_runner(self) -> None:
        if self._moving is not None:
            self._moving.join()
        self.runner.close()

    async def reload(self) -> None:
        """Loads the model again if a request still waits for it; if that fails, its requests get 503 until a canary has
        been answered."""
        async with self.device.loading:
            try:
                if self not in self.device.loaded:
                    if not self.batcher.model.aside:
                        return
                    await self.device.load(self)
                self.batcher.release()
            except Exception as error:  # noqa: BLE001 - whatever loading raises, its requests get it
                reason = f"the model cannot be loaded: {error}"
                log.error("%s", reason)
                self.batcher.suspend(reason, all_requests=True)

    def _load(self, folder: Path, files: ExitStack) -> None:
        device, limit = self.artifact.manifest.device, self.device.memory_limit
        before = memory_in_use(device)
        try:
            with files:
                copied = self.runner.open(folder)
            if copied:
                log.info("%d MiB of weights copied to memory: a change of their file has no effect", copied >> 20)
            if self.calibration is None:
                self.calibration = self._measure()
                self.memory_bytes = max(self.memory_bytes, memory_in_use(device) - before + copied)
            if self.memory_bytes > limit:
                takes = f"{self.artifact.manifest.name} alone takes {self.memory_bytes >> 20} MiB of memory"
                way_out = "raise it, export the model in int8, or set a smaller BERT_TOKEN_BUDGET"
                raise DeviceError(f"{takes}, and BERT_MEMORY_LIMIT is {int(limit) >> 20} MiB: {way_out}")
        except BaseException:
            self.runner.close()
            raise

    def _measure(self) -> Calibration:
        calibrations, manifest = self.device.calibrations, self.artifact.manifest
        size = (*sorted(manifest.sizes.items()), manifest.precision)
        if (known := calibrations.get(size)) is None:
            calibrations[size] = known = measure(self.runner, token_budget=self.settings.token_budget)
            return known
        tested = measure(self.runner, token_budget=known.token_budget)
        return replace(tested, tokens_per_second=known.tokens_per_second)

    def _make_batcher(self, calibration: Calibration) -> Batcher:
        device, name = self.device, self.artifact.manifest.name
        if (beside := next(iter(device.batchers.values()), None)) is None:
            device.tokens_per_second = calibration.tokens_per_second
        scale = device.tokens_per_second / calibration.tokens_per_second
        batches, most = WINDOW_BATCHES * self.runner.concurrency.max_in_flight, self.settings.max_waiting_tokens
        batcher = Batcher(
            run=self.runner.run,
            queue=beside.queue if beside else self._make_queue(calibration),
            report=self._after_batch,
            concurrency=self.runner.concurrency,
            watchdog=beside.watchdog if beside else self._make_watchdog(),
            model=QueuedModel(
                scale=scale,
                budget=scale * calibration.token_budget,
                window=min(batches * calibration.token_budget, int(most * BULK_SHARE)),
            ),
            load=partial(device.want, self),
        )
        if beside is not None:
            batcher.share(beside.dispatcher)
            beside.queue.token_budget = max(beside.queue.token_budget, round(batcher.model.budget))
        if (before := device.batchers.get(name)) is not None:
            batcher.counts, batcher.canaries, batcher.failures = before.counts, before.canaries, before.failures
        device.batchers[name] = batcher
        return batcher

    def _make_tasks(self) -> Tasks:
        manifest, settings = self.artifact.manifest, self.settings
        return Tasks(manifest=manifest, tokenizer=self.tokenizer, queue=self.batcher, settings=settings)

    def _make_queue(self, calibration: Calibration) -> RequestQueue:
        return RequestQueue(
            token_budget=calibration.token_budget,
            max_tokens=max(self.settings.max_waiting_tokens, calibration.token_budget),
            max_wait_seconds=self.settings.max_wait_seconds,
            tokens_per_second=calibration.tokens_per_second,
        )

    def _make_watchdog(self) -> Watchdog:
        timeout_seconds, device = self.settings.run_timeout_seconds, self.device
        reason = f"stuck: a run has lasted {timeout_seconds:g} s (BERT_RUN_TIMEOUT_SECONDS)"
        return Watchdog(
            run_timeout_seconds=timeout_seconds,
            on_timeout=lambda: device.fail(reason),
            side_by_side=self.runner.concurrency.per_core,
            busy=BusyShare(self.runner.concurrency.side_by_side),
        )

    def _make_canary(self) -> Canary:
        return Canary(
            batcher=self.batcher,
            health=self.health,
            tokens=golden_tokens(self.artifact.manifest, 0),
            vector=np.array(self.artifact.manifest.canary.cls),
            interval_seconds=self.self_check_seconds,
            timeout_seconds=self.settings.run_timeout_seconds,
            on_dead=self._on_dead,
            is_wanted=lambda: self in self.device.loaded or bool(self.batcher.suspended),
        )

    def _after_batch(self, report: BatchReport) -> None:
        self.metrics.batch(report)
        self._batches += 1
        if self._batches % BATCHES_BETWEEN_CHECKS == 0:
            self._canary.due.set()
        if self.device.memory_limit < math.inf and not report.canary:
            self.device.use(self)
        if (tracing := self.device.tracing) is not None:
            traces = Counter(chunk.request.trace for chunk, _ in report.jobs if chunk.request.trace)
            size = {"sequences": report.sequences, "tokens": report.tokens}
            tracing.record_batch(traces, **size, seconds=report.ran_seconds)


def common_concurrency(artifacts: Sequence[Artifact], threads: int) -> Concurrency:
    """The concurrency of models that share a device: if they differ, one batch at a time."""
    found = {concurrency_for(one, threads) for one in artifacts}
    return found.pop() if len(found) == 1 else SERIAL


def concurrency_for(artifact: Artifact, threads: int) -> Concurrency:
    """A GPU would idle while the host packs and splits; a CPU has no time to spare for preparing, but several cores."""
    if artifact.manifest.device == "cuda":
        return Concurrency(max_in_flight=2)
    small = artifact.weights_bytes <= MAX_COPIED_BYTES
    if threads > 1 and (artifact.manifest.precision in PER_CORE_PRECISIONS or small):
        return Concurrency(max_in_flight=threads, per_core=True)
    return SERIAL
