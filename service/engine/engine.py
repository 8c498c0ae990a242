"""The lifecycle between an artifact and its answers: loads in the background, keeps its own pulse, drains, closes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from service.artifact import Artifact
from service.backend import BYTES_PER_TOKEN, SHUTTING_DOWN
from service.engine.calibration import Calibration
from service.engine.canary import CanaryHealth
from service.engine.cpu import available_cores
from service.engine.device import concurrency_for
from service.engine.runner import ModelRunner
from service.engine.session import onnxruntime_version
from service.errors import InferenceFailed, ServiceError, Unavailable
from service.metrics import Metrics
from service.scheduling.batcher import Batcher
from service.scheduling.concurrency import Concurrency
from service.scheduling.queue import RequestQueue
from service.scheduling.stats import BatchReport
from service.scheduling.watchdog import Watchdog
from service.settings import Settings
from service.tasks.base import Limits, Tasks
from service.tasks.tokenizer import Tokenizer

PULSE_BATCHES = 100  # a busy engine runs the canary after so many batches
GUESS_SHARE = 10  # a guess counts for at most this part of the line: an empty one never refuses by it
GRACE_SECONDS = 5.0  # for a run that is under way when the engine closes
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class Engine:
    """`open`, then `tasks` answers; `readiness` says at any time whether it would."""

    artifact: Artifact
    settings: Settings
    metrics: Metrics
    degraded: str = ""  # why the CPU is used though there is an artifact for the GPU
    startup_grace_seconds: float = 0.0
    on_failure: Callable[[], None] = lambda: None  # the process should end, with an exit code that says so
    make_runner: Callable[[Artifact, int, Concurrency], ModelRunner] = (
        ModelRunner  # benchmarks/null_model.py has one that computes nothing
    )
    calibration: Calibration | None = None
    health: CanaryHealth = field(init=False)
    runner: ModelRunner = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    batcher: Batcher = field(init=False)
    _tasks: Tasks | None = None
    _batches: int = 0
    _pulse_due: asyncio.Event = field(default_factory=asyncio.Event)
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.health = CanaryHealth(
            stale_seconds=self.settings.run_timeout_seconds, tolerance=self.artifact.manifest.canary.tolerance
        )

    def on_fatal(self, end: Callable[[], None]) -> None:
        self.on_failure = end

    @property
    def tasks(self) -> Tasks:
        """Raises Unavailable while the model is loading."""
        if self._tasks is None:
            raise Unavailable("the model is loading: try again in a few seconds", code="loading", retry_after=2)
        return self._tasks

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        threads = self.settings.threads or available_cores()
        self.runner = self.make_runner(self.artifact, threads, concurrency_for(self.artifact, threads))
        self.tokenizer = Tokenizer(self.artifact, self.settings.max_characters)
        self.calibration = await asyncio.to_thread(self._load)
        self.batcher = self._line(self.calibration)
        self.metrics.observe_queue(self.batcher, self.runner.provider, degraded=bool(self.degraded))
        serving = asyncio.create_task(self.batcher.serve())
        serving.add_done_callback(self._served)
        self._background = [serving, asyncio.create_task(self._keep_pulse())]
        await self._pulse()
        limits = Limits(
            max_inputs=self.settings.max_inputs, max_top_k=self.settings.max_top_k, truncate=self.settings.truncate
        )
        self._tasks = Tasks(
            manifest=self.artifact.manifest, tokenizer=self.tokenizer, batcher=self.batcher, limits=limits
        )
        self.health.loading = False
        log.info(
            "ready: %s on %s, %d threads, %s",
            self.artifact.manifest.name,
            self.runner.provider,
            threads,
            self.calibration,
        )

    def readiness(self) -> str:
        """Why a request would not be answered now; empty when it would."""
        return self.health.reason(
            since_answer=0.0 if self._tasks is None else self.batcher.clock() - self.batcher.last_answer
        )

    @property
    def draining(self) -> bool:
        return self.health.draining

    async def ready(self) -> str:
        return self.readiness()

    async def info(self) -> dict[str, Any]:
        return self.describe() | {"api_processes": 0}

    async def render_metrics(self) -> bytes:
        return self.metrics.text()

    def check_admission(self, body_bytes: int) -> None:
        """Raises Unavailable or Overloaded where a request with such a body would be refused: before it is read and tokenized."""
        if self.health.draining:
            raise Unavailable(SHUTTING_DOWN)
        if self._tasks is not None:
            self.batcher.check_admission(
                min(max(1, body_bytes // BYTES_PER_TOKEN), self.batcher.queue.max_tokens // GUESS_SHARE)
            )

    def describe(self) -> dict[str, Any]:
        """What /info tells."""
        manifest, calibration = self.artifact.manifest, self.calibration
        return {
            "model": manifest.name,
            "family": manifest.family,
            "heads": manifest.heads,
            "pooling": manifest.pooling,
            "missing_heads": manifest.missing,
            "pair_labels": manifest.pair_labels,
            "labels": manifest.labels,
            "label_scores": manifest.label_scores,
            "sizes": manifest.sizes,
            "limits": {
                "tokens": manifest.max_tokens,
                "inputs": self.settings.max_inputs,
                "characters": self.settings.max_characters,
                "body_bytes": self.settings.max_body_bytes,
                "top_k": self.settings.max_top_k,
                "waiting_tokens": self.settings.max_waiting_tokens,
                "timeout_ms": self.settings.timeout_ms,
            },
            "truncate": self.settings.truncate,
            "mask_token": self.tokenizer.mask_token if self._tasks else None,
            "precision": manifest.precision,
            "execution_provider": self.runner.provider if self._tasks else None,
            "device": manifest.device,
            "degraded": self.degraded or None,
            "threads": self.runner.threads if self._tasks else None,
            "measured": asdict(calibration) if calibration else None,
            "verification": manifest.verification,
            "artifact": self.artifact.digest,
            "versions": {
                "exporter": manifest.exporter,
                "service": version("bert-service"),
                "onnxruntime": onnxruntime_version(),
            },
            "status": self.readiness() or "ready",
        }

    def drain(self) -> None:
        """No longer ready, and newcomers are refused; what waits is still answered."""
        self.health.draining = True

    def cancel_pending(self) -> None:
        """Answers whatever still waits with 503."""
        if self._tasks is not None:
            self.batcher.close(SHUTTING_DOWN)

    def fail(self, reason: str) -> None:
        """For good: everyone is answered 503, and the process is to end so that its supervisor starts another."""
        if self.health.fault:
            return
        self.health.fault = reason
        log.critical("giving up: %s", reason)
        self.batcher.fail_all(reason)
        self.on_failure()

    async def close(self) -> None:
        self.drain()
        if not self._background:
            return
        self.batcher.close(SHUTTING_DOWN)
        serving, pulse = self._background
        pulse.cancel()
        await asyncio.wait((serving, pulse), timeout=0 if self.health.fault else GRACE_SECONDS)
        self.batcher.fail_all(SHUTTING_DOWN)
        self.runner.close()
        self.tokenizer.close()

    def _load(self) -> Calibration:
        self.runner.open()
        self.tokenizer.open()
        return self.runner.measure(token_budget=self.settings.token_budget)

    def _line(self, calibration: Calibration) -> Batcher:
        queue = RequestQueue(
            token_budget=calibration.token_budget,
            max_tokens=max(self.settings.max_waiting_tokens, calibration.token_budget),
            max_wait_seconds=self.settings.max_wait_seconds,
            tokens_per_second=calibration.tokens_per_second,
        )
        run_timeout_seconds = self.settings.run_timeout_seconds
        reason = f"stuck: a run has lasted {run_timeout_seconds:g} s (BERT_RUN_TIMEOUT_SECONDS)"
        return Batcher(
            run=self.runner.run,
            queue=queue,
            report=self._after_batch,
            concurrency=self.runner.concurrency,
            watchdog=Watchdog(
                run_timeout_seconds=run_timeout_seconds,
                on_timeout=lambda: self.fail(reason),
                side_by_side=self.runner.concurrency.per_core,
            ),
        )

    def _after_batch(self, report: BatchReport) -> None:
        self.metrics.batch(report)
        self._batches += 1
        if self._batches % PULSE_BATCHES == 0:
            self._pulse_due.set()

    def _served(self, serving: asyncio.Task[None]) -> None:
        """The loop that serves ends when closed and never otherwise: a fault in it must not leave callers waiting."""
        if not serving.cancelled() and (error := serving.exception()) is not None:
            log.error("the line stopped", exc_info=error)
            self.fail(f"the line stopped: {type(error).__name__}")

    async def _keep_pulse(self) -> None:
        seconds = self.settings.self_check_seconds
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pulse_due.wait(), seconds)
            if self._pulse_due.is_set() or self.batcher.clock() - self.batcher.last_answer >= seconds:
                self._pulse_due.clear()
                await self._pulse()

    async def _pulse(self) -> None:
        """The canary, through the real queue; its vector must be the one that the exporter's reference gave."""
        known = np.array(self.artifact.manifest.canary.cls)
        before = self.health.canary
        try:
            answer = await self.batcher.submit_exclusive(
                [self.runner.canary()], timeout_seconds=self.settings.run_timeout_seconds
            )
        except InferenceFailed as error:
            if self.health.canary_failed(error.message):
                self.fail(f"every run fails: {error.message}")
        except ServiceError:
            return  # the line is closed
        else:
            self.health.canary_answered(float(np.abs(answer.rows[0]["cls"][0] - known).max()))
        if self.health.canary != before:
            log.error("not ready: %s", self.health.canary) if self.health.canary else log.info("ready again")
