"""The Prometheus metrics: filled from batch reports and from the batcher's own counts. Decides nothing."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from service.scheduling.batcher import Batcher
from service.scheduling.stats import BatchReport
from service.tracing.context import current_exemplar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TASKS = (
    *("embed", "fill_mask", "nsp", "predict", "tag", "similarity", "rerank", "root"),
    *("embeddings", "classify", "score", "pooling", "infer", "tokenize", "decode", "embed_all", "embed_sparse"),
)
UNKNOWN = "unknown"  # the task of a request that was refused before its path was read
REASONS = (
    "overloaded",
    "buffers_full",
    "deadline_too_short",
    "too_large",
    "too_much_for_deadline",
    "invalid",
    "unavailable",
    "deadline",
    "unauthorized",
    "bad_request",
    "unsupported",
    "no_such_head",
    "not_found",
    "run_failed",
    "not_finite",
    "out_of_memory",
    "tokenizer_failed",
    "internal",
    "client_closed",
    "slow",
    "headers_too_large",
    "malformed",
)


@dataclass(frozen=True, slots=True)
class QueueCollector(Collector):
    """Reads the batcher at the moment of the scrape, so that the numbers add up."""

    batcher: Batcher

    def collect(self) -> Iterable[Metric]:
        batcher, queue = self.batcher, self.batcher.queue
        ended = CounterMetricFamily(
            "bert_queue_requests",
            "Requests by how they ended; received = the others + bert_inflight_requests",
            labels=["outcome"],
        )
        for outcome, count in asdict(batcher.counts).items():
            ended.add_metric([outcome], count)
        yield ended
        for name, text, count in (
            ("bert_failed_runs", "Runs that raised or gave no finite answer", batcher.failures.failed_runs),
            (
                "bert_out_of_memory_runs",
                "Failed runs whose memory could not be allocated; each lowers the token budget",
                batcher.failures.out_of_memory,
            ),
        ):
            yield CounterMetricFamily(name, text, value=count)
        waiting = queue.tokens + queue.reserved
        oldest = batcher.clock() - queue.oldest if queue.oldest is not None else 0.0
        for name, text, value in (
            ("bert_inflight_requests", "Requests that wait or run", batcher.unanswered),
            ("bert_waiting_requests", "Requests with at least one queued sequence", len(queue)),
            ("bert_waiting_tokens", "Tokens in the queue, with those expected from tokenizing", waiting),
            ("bert_oldest_wait_seconds", "How long the oldest queued request has waited", oldest),
            (
                "bert_wait_seconds_estimated",
                "Estimated time until all that is queued has been dispatched",
                queue.drain_seconds,
            ),
            (
                "bert_token_budget",
                "Tokens in one batch: measured at start, lowered when memory runs out",
                queue.token_budget,
            ),
            (
                "bert_busy_ratio",
                "Share of the device (per-core sessions, or the whole) that runs used in the last 15 s or so",
                batcher.watchdog.busy.at(batcher.clock()),
            ),
            ("bert_tokens_per_second", "Measured rate of full batches", queue.tokens_per_second),
        ):
            yield GaugeMetricFamily(name, text, value=value)


class Metrics:
    """All series, from the start at zero; label values come from fixed sets."""

    exemplars = False  # the latencies name traces; prometheus_client keeps none where several processes count

    def __init__(self) -> None:
        self._registry, self._queue_registry = CollectorRegistry(), CollectorRegistry()
        counter, histogram = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="max")
        self._requests = counter("bert_requests", "Answered requests", ["task", "status"])
        self._seconds = histogram(
            "bert_request_seconds", "From the last byte received to the answer", ["task"], buckets=SECONDS
        )
        self._errors = counter("bert_errors", "Requests not answered with 200, by reason", ["reason"])
        self._truncated = counter("bert_truncated_inputs", "Inputs that were truncated")
        self._tokens = counter("bert_tokens", "Tokens through the linear layers; none of them is padding")
        self._slots = counter("bert_attention_slots", "Slots of attention rows; bert_tokens / this is the fill")
        self._batch_tokens = histogram("bert_batch_tokens", "Tokens in a batch", buckets=SIZES)
        self._batch_sequences = histogram("bert_batch_sequences", "Sequences in a batch", buckets=SIZES)
        self._forward = histogram("bert_forward_seconds", "Duration of one run", buckets=SECONDS)
        self._wait = histogram("bert_queue_seconds", "Longest wait in a batch", buckets=SECONDS)
        self._provider = gauge("bert_execution_provider", "1 for the execution provider in use", ["provider"])
        self._degraded = gauge("bert_degraded", "1 where the CPU is used although there is an artifact for the GPU")
        # "sum": each API worker has its own; set here, because the file of an ended worker's values goes on
        tokenizing = partial(Gauge, registry=self._registry, multiprocess_mode="sum")
        self._tokenizing_requests = tokenizing("bert_tokenizing_requests", "Requests that are tokenized or wait for it")
        self._tokenizing_characters = tokenizing(
            "bert_tokenizing_characters", "Their characters that are not tokenized"
        )
        self.tokenizing(0, 0)
        self._answered = {task: (self._requests.labels(task, "200"), self._seconds.labels(task)) for task in TASKS}
        for reason in REASONS:
            self._errors.labels(reason)

    def observe_queue(self, batcher: Batcher, provider: str, *, degraded: bool) -> None:
        self._queue_registry.register(QueueCollector(batcher))
        self._provider.labels(provider).set(1)
        self._degraded.set(degraded)

    def batch(self, report: BatchReport) -> None:
        self._tokens.inc(report.tokens)
        self._slots.inc(report.slots)
        self._batch_tokens.observe(report.tokens)
        self._batch_sequences.observe(report.sequences)
        self._forward.observe(report.ran_seconds)
        self._wait.observe(report.waited_seconds)

    def answered(self, task: str, *, seconds: float, truncated: int) -> None:
        count, histogram = self._answered[task]
        count.inc()
        histogram.observe(seconds, current_exemplar() if self.exemplars else None)
        if truncated:
            self._truncated.inc(truncated)

    def tokenizing(self, requests: int, characters: int) -> None:
        self._tokenizing_requests.set(requests)
        self._tokenizing_characters.set(characters)

    def refused(self, task: str, status: int, code: str) -> None:
        self._requests.labels(task, str(status)).inc()
        self._errors.labels(code if code in REASONS else "invalid").inc()

    def rejected_by_protocol(self, status: int, code: str) -> None:
        self.refused(UNKNOWN, status, code)

    def text(self) -> bytes:
        return generate_latest(self._registry) + self.queue_text()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its media type: OpenMetrics, which has exemplars, where the scraper names it."""
        if OPENMETRICS not in accept:
            return self.text(), CONTENT_TYPE
        parts = [
            openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
            for registry in (self._registry, self._queue_registry)
        ]
        return parts[0].removesuffix(b"# EOF\n") + parts[1], openmetrics.CONTENT_TYPE_LATEST

    def queue_text(self) -> bytes:
        """The metrics of the queue, which only the process with the engine has."""
        return generate_latest(self._queue_registry)


def aggregate(folder: Path) -> bytes:
    """The sums over the metric files in `folder`: of all processes, running or ended."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return generate_latest(registry)
