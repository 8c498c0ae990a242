"""What Prometheus scrapes. Facts come in as reports and from the batcher's own counts; nothing here decides anything."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from service.scheduling.batcher import Batcher
from service.scheduling.stats import BatchReport

COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client looks for the folder
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TASKS = ("embed", "fill_mask", "nsp", "embeddings", "predict", "tag")
UNKNOWN = "unknown"  # a request that was refused before its path was looked at
REASONS = (
    "overloaded",
    "too_large",
    "invalid",
    "unavailable",
    "deadline",
    "unauthorized",
    "bad_request",
    "no_such_head",
    "run_failed",
    "not_finite",
    "out_of_memory",
    "internal",
    "client_closed",
    "slow",
    "headers_too_large",
    "malformed",
)


@dataclass(frozen=True, slots=True)
class _Line(Collector):
    """Reads the batcher at the moment of the scrape, so that the numbers add up."""

    batcher: Batcher

    def collect(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "bert_queue_requests",
            "Requests by how they ended; received = the others + bert_inflight_requests",
            labels=["outcome"],
        )
        for outcome, count in asdict(self.batcher.counts).items():
            ended.add_metric([outcome], count)
        yield ended
        failed = CounterMetricFamily(
            "bert_failed_runs", "Runs that raised or gave no finite answer; they were split to find the culprit"
        )
        failed.add_metric([], self.batcher.failures.failed_runs)
        yield failed
        starved = CounterMetricFamily(
            "bert_out_of_memory_runs", "Failed runs whose memory could not be had; each lowers the token budget"
        )
        starved.add_metric([], self.batcher.failures.out_of_memory)
        yield starved
        waiting = self.batcher.queue
        oldest = self.batcher.clock() - waiting.oldest if waiting.oldest is not None else 0.0
        for name, text, value in (
            ("bert_inflight_requests", "Requests that wait or run", self.batcher.unanswered),
            ("bert_waiting_requests", "Requests of which something waits", len(waiting)),
            ("bert_waiting_tokens", "Tokens in the line", waiting.tokens),
            ("bert_oldest_wait_seconds", "How long the oldest request in the line has waited", oldest),
            (
                "bert_wait_seconds_estimated",
                "Estimated wait of a request with one short text that comes now",
                waiting.wait_seconds(1),
            ),
            (
                "bert_token_budget",
                "Tokens in one batch, measured at start, lowered when memory ran out",
                waiting.token_budget,
            ),
            ("bert_tokens_per_second", "Measured rate of full batches", waiting.tokens_per_second),
        ):
            yield GaugeMetricFamily(name, text, value=value)


class Metrics:
    """Every series exists from the start, at zero; labels come from fixed sets."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._line_registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter("bert_requests", "Answered requests", ["task", "status"], registry=registry)
        self._seconds = Histogram(
            "bert_request_seconds",
            "From the last byte received to the answer",
            ["task"],
            buckets=SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "bert_errors", "Requests not answered with 200, by reason", ["reason"], registry=registry
        )
        self._truncated = Counter("bert_truncated_inputs", "Inputs that were cut", registry=registry)
        self._tokens = Counter(
            "bert_tokens",
            "Tokens through the linear layers; all of them useful, since nothing is padded",
            registry=registry,
        )
        self._slots = Counter(
            "bert_attention_slots",
            "Slots of attention rows, filled or not; bert_tokens / this is the fill",
            registry=registry,
        )
        self._batch_tokens = Histogram("bert_batch_tokens", "Tokens in a batch", buckets=SIZES, registry=registry)
        self._batch_sequences = Histogram(
            "bert_batch_sequences", "Sequences in a batch", buckets=SIZES, registry=registry
        )
        self._forward = Histogram("bert_forward_seconds", "One run", buckets=SECONDS, registry=registry)
        self._wait = Histogram("bert_queue_seconds", "Longest wait in a batch", buckets=SECONDS, registry=registry)
        self._provider = Gauge(
            "bert_execution_provider",
            "1 for the execution provider in use",
            ["provider"],
            registry=registry,
            multiprocess_mode="max",
        )
        self._degraded = Gauge(
            "bert_degraded",
            "1 where the CPU is used though there is an artifact for the GPU",
            registry=registry,
            multiprocess_mode="max",
        )
        self._answered = {task: (self._requests.labels(task, "200"), self._seconds.labels(task)) for task in TASKS}
        for reason in REASONS:
            self._errors.labels(reason)

    def observe_queue(self, batcher: Batcher, provider: str, *, degraded: bool) -> None:
        self._line_registry.register(_Line(batcher))
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
        histogram.observe(seconds)
        if truncated:
            self._truncated.inc(truncated)

    def refused(self, task: str, status: int, code: str) -> None:
        self._requests.labels(task, str(status)).inc()
        self._errors.labels(code if code in REASONS else "invalid").inc()

    def rejected_by_protocol(self, status: int, code: str) -> None:
        self.refused(UNKNOWN, status, code)

    def text(self) -> bytes:
        return generate_latest(self._registry) + self.line_text()

    def line_text(self) -> bytes:
        """What only the process with the line can tell."""
        return generate_latest(self._line_registry)


def share(name: str) -> None:
    """From now on the counts of this process lie in the folder COUNTS_VARIABLE, under a name that the successor of this process has too:
    it counts on where this one ends. To be called before the first Metrics is made."""
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]


def aggregate(folder: Path) -> bytes:
    """The sums over all processes that have counted into `folder`, living or not."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return generate_latest(registry)
