"""The counts of one process, and the sums over several."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Exemplar

from packbert.service.observability import cells
from packbert.service.observability.cells import (
    BATCH_SIZES,
    MISDIRECTED,
    OUTCOMES,
    REASONS,
    RUN_SECONDS,
    STAGES,
    TASKS,
    UNKNOWN,
)
from packbert.service.observability.scrape import DeviceMemory, QueueCollector, render
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import BatchReport
from packbert.service.trace_context import current_exemplar

OPERATIONAL = "bert_operational_requests"
disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge beside every counter, in one process only


class Metrics:
    """All series, from the start at zero; label values come from fixed sets.

    `name` and `folder` are those of a worker: its counts of requests go into a file there, which `aggregate` reads.
    """

    exemplars = False  # the latencies name traces; not where several processes count

    def __init__(self, name: str = "", folder: Path | None = None) -> None:
        self.cells = cells.open_cells(folder / f"{name}{cells.SUFFIX}" if folder else None)
        self._registry, self._queue_registry = CollectorRegistry(), CollectorRegistry()
        self._exemplars: dict[int, Exemplar] = {}  # by cell
        self._registry.register(cells.TallyCollector(self.cells, self._exemplars))
        counter, histogram = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="max")
        self._requests = counter(
            "bert_requests",
            "Responses to requests of tasks, and 404 and 405; 499: the client left first",
            ["task", "status"],
        )
        self._operational = counter(OPERATIONAL, "Responses of routes that run no model", ["path", "status"])
        self._errors = counter("bert_errors", "Responses of bert_requests_total without 200, by reason", ["reason"])
        self._truncated = counter("bert_truncated_inputs", "Inputs that were truncated")
        self._tokens = counter("bert_tokens", "Tokens that the model computed; none of them is padding")
        self._slots = counter("bert_attention_slots", "Slots of attention rows; bert_tokens_total / this is the fill")
        self._batch_tokens = histogram("bert_batch_tokens", "Tokens in a batch", buckets=BATCH_SIZES)
        self._batch_sequences = histogram("bert_batch_sequences", "Sequences in a batch", buckets=BATCH_SIZES)
        self._forward = histogram("bert_forward_seconds", "Duration of one run of the model", buckets=RUN_SECONDS)
        self._wait = histogram("bert_queue_seconds", "Longest wait of a request in a batch", buckets=RUN_SECONDS)
        self._canary = histogram("bert_canary_seconds", "Duration of a self-check's run", buckets=RUN_SECONDS)
        self._provider = gauge("bert_execution_provider", "1 for the execution provider in use", ["provider"])
        self._degraded = gauge("bert_degraded", "1 where the CPU is used although there is an artifact for CUDA")
        # "sum": each API worker has its own; set here, because the file of an ended worker's values goes on
        tokenizing = partial(Gauge, registry=self._registry, multiprocess_mode="sum")
        self._tokenizing_requests = tokenizing("bert_tokenizing_requests", "Requests that are tokenized or wait for it")
        self._tokenizing_characters = tokenizing(
            "bert_tokenizing_characters", "Characters of requests that are not tokenized yet"
        )
        self.tokenizing(0, 0)
        common = [cells.STAGE.series[stage] for stage in STAGES]
        common += [one.series[""] for one in (cells.TEXTS, cells.TOKENS, cells.BODY_BYTES, cells.RESPONSE_BYTES)]
        self._answered = {
            task: (self._requests.labels(task, "200"), [cells.SECONDS.series[task], *common]) for task in TASKS
        }
        for reason in REASONS:
            self._errors.labels(reason)
        for status in MISDIRECTED:
            self._requests.labels(UNKNOWN, str(status))

    def observe_queue(
        self, batcher: Batcher, provider: str, *, degraded: bool, device_memory: DeviceMemory | None = None
    ) -> None:
        self._queue_registry.register(QueueCollector(batcher, device_memory))
        self._provider.labels(provider).set(1)
        self._degraded.set(degraded)

    def batch(self, report: BatchReport) -> None:
        """A self-check's run counts apart from those for clients."""
        if report.canary:
            self._canary.observe(report.ran_seconds)
            return
        self._tokens.inc(report.tokens)
        self._slots.inc(report.slots)
        self._batch_tokens.observe(report.tokens)
        self._batch_sequences.observe(report.sequences)
        self._forward.observe(report.ran_seconds)
        self._wait.observe(report.waited_seconds)

    def answered(
        self, task: str, *, seconds: float, stages: Sequence[float], sizes: Sequence[float], truncated: int
    ) -> None:
        """A response with 200. `stages`: seconds of each of STAGES; `sizes`: texts, tokens, bytes of both bodies."""
        count, series = self._answered[task]
        count.inc()
        cells.observe(self.cells, series, (seconds, *stages, *sizes))
        if self.exemplars and (labels := current_exemplar()):
            self._exemplars[cells.find_cell(series[0], seconds)] = Exemplar(labels, seconds, time.time())
        if truncated:
            self._truncated.inc(truncated)

    def tokenizing(self, requests: int, characters: int) -> None:
        self._tokenizing_requests.set(requests)
        self._tokenizing_characters.set(characters)

    def refused(self, task: str, status: int, reason: str, seconds: float | None = None) -> None:
        """A response without 200; `seconds`: None where it has no latency, because no task received the request."""
        reason = reason if reason in REASONS else "invalid"
        self._requests.labels(task, str(status)).inc()
        self._errors.labels(reason).inc()
        if seconds is not None:
            series = cells.ERROR_SECONDS.series[OUTCOMES.get(reason, "refused")]
            cells.observe(self.cells, [series], [seconds])

    def rejected_by_protocol(self, status: int, code: str) -> None:
        self.refused(UNKNOWN, status, code)

    def operational(self, path: str, status: int) -> None:
        """A response of the route `path`, which is as declared: no client chooses it."""
        self._operational.labels(path, str(status)).inc()

    @property
    def registries(self) -> tuple[CollectorRegistry, CollectorRegistry]:
        """Of the requests and of the queue."""
        return self._registry, self._queue_registry

    def text(self) -> bytes:
        return render(self.registries)[0]

    def queue_text(self) -> bytes:
        """The metrics of the queue, which only the process with the engine has."""
        return generate_latest(self._queue_registry)


def aggregate(folder: Path) -> bytes:
    """The sums over the metric files in `folder`: of all processes, running or ended."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    registry.register(cells.TallyCollector(cells.sum_cells(folder)))
    return generate_latest(registry)
