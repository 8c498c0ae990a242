"""The lifecycle between an artifact and its answers: loads in the background, keeps its own pulse, drains, closes."""

import asyncio
import logging
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from service.artifact import Artifact
from service.batcher import Batcher
from service.cores import available_cores
from service.errors import ServiceError, Unavailable
from service.metrics import Metrics
from service.runtime import Facts, Runtime
from service.session import onnxruntime_version
from service.settings import Settings
from service.tasks import Limits, Tasks
from service.tokenizer import Tokenizer
from service.waiting import Waiting

PULSE_SECONDS = 5.0  # an idle engine runs the canary this often
STUCK_SECONDS = 30.0  # a run that takes longer, or no good run for this long, and the engine is not ready
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class Engine:
    """`open`, then `tasks` answers; `readiness` says at any time whether it would."""

    artifact: Artifact
    settings: Settings
    metrics: Metrics
    degraded: str = ""  # why the CPU is used though there is an artifact for the GPU
    facts: Facts | None = None
    runtime: Runtime = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    batcher: Batcher = field(init=False)
    _tasks: Tasks | None = None
    _draining: bool = False
    _canary_fault: str = ""
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def tasks(self) -> Tasks:
        """Raises Unavailable while the model is loading."""
        if self._tasks is None:
            raise Unavailable("the model is loading: try again in a few seconds", code="loading", retry_after=2)
        return self._tasks

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        threads = self.settings.threads or available_cores()
        self.runtime = Runtime(self.artifact, threads)
        self.tokenizer = Tokenizer(self.artifact, self.settings.max_characters)
        self.facts = await asyncio.to_thread(self._load)
        self.batcher = Batcher(
            run=self.runtime.run,
            waiting=Waiting(
                token_budget=self.facts.token_budget,
                max_tokens=max(self.settings.max_waiting_tokens, self.facts.token_budget),
                max_wait_seconds=self.settings.max_wait_seconds,
                tokens_per_second=self.facts.tokens_per_second,
            ),
            report=self.metrics.batch,
        )
        self.metrics.follow(self.batcher, self.runtime.provider, degraded=bool(self.degraded))
        self._background = [asyncio.create_task(self.batcher.serve()), asyncio.create_task(self._keep_pulse())]
        await self._pulse()
        limits = Limits(max_inputs=self.settings.max_inputs, max_top_k=self.settings.max_top_k, truncate=self.settings.truncate)
        self._tasks = Tasks(manifest=self.artifact.manifest, tokenizer=self.tokenizer, batcher=self.batcher, limits=limits)
        log.info("ready: %s on %s, %d threads, %s", self.artifact.manifest.name, self.runtime.provider, threads, self.facts)

    def readiness(self) -> str:
        """Why a request would not be answered now; empty when it would."""
        if self._tasks is None:
            return "loading"
        if self._draining:
            return "draining"
        if self._canary_fault:
            return self._canary_fault
        now = self.batcher.clock()
        if self.batcher.running_since is not None:
            return "stuck: a run does not end" if now - self.batcher.running_since > STUCK_SECONDS else ""
        return "stuck: no run went well lately" if now - self.batcher.last_answer > STUCK_SECONDS else ""

    @property
    def draining(self) -> bool:
        return self._draining

    def describe(self) -> dict[str, Any]:
        """What /info tells."""
        manifest, facts = self.artifact.manifest, self.facts
        return {
            "model": manifest.name,
            "family": manifest.family,
            "heads": manifest.heads,
            "missing_heads": manifest.missing,
            "pair_labels": manifest.pair_labels,
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
            "execution_provider": self.runtime.provider if self._tasks else None,
            "device": manifest.device,
            "degraded": self.degraded or None,
            "threads": self.runtime.threads if self._tasks else None,
            "measured": asdict(facts) if facts else None,
            "verification": manifest.verification,
            "artifact": self.artifact.digest,
            "versions": {"exporter": manifest.exporter, "service": version("bert-service"), "onnxruntime": onnxruntime_version()},
            "status": self.readiness() or "ready",
        }

    def drain(self) -> None:
        """No longer ready; what waits is still answered."""
        self._draining = True

    def give_up(self) -> None:
        """Answers whatever still waits with 503."""
        if self._tasks is not None:
            self.batcher.close("the server is shutting down: send the request to another replica")

    async def close(self) -> None:
        self.drain()
        if self._tasks is None:
            return
        self.give_up()
        serving, pulse = self._background
        pulse.cancel()
        await asyncio.gather(serving, pulse, return_exceptions=True)
        self.runtime.close()
        self.tokenizer.close()

    def _load(self) -> Facts:
        self.runtime.open()
        self.tokenizer.open()
        return self.runtime.measure(token_budget=self.settings.token_budget)

    async def _keep_pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            if self.batcher.clock() - self.batcher.last_answer >= PULSE_SECONDS and self.batcher.running_since is None:
                await self._pulse()

    async def _pulse(self) -> None:
        """The canary, through the real queue; its vector must be the one that the exporter's reference gave."""
        canary = self.artifact.manifest.canary
        try:
            answer = await self.batcher.submit([self.runtime.canary()], timeout_seconds=STUCK_SECONDS)
        except ServiceError as error:
            self._canary_fault = f"the canary was not answered: {error.message}"
        else:
            difference = float(np.abs(answer.rows[0]["cls"][0] - np.array(canary.cls)).max())
            self._canary_fault = "" if difference <= canary.tolerance else f"the canary's vector is wrong by {difference:.3g}"
        if self._canary_fault:
            log.error("not ready: %s", self._canary_fault)
