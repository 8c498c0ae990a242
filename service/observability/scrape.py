"""What is read at a scrape, and its text formats."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from packbert.service.artifact import Artifact
from packbert.service.scheduling.batcher import Batcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"


def render(registries: Sequence[CollectorRegistry], accept: str = "") -> tuple[bytes, str]:
    """The text and its media type: OpenMetrics where the scraper's Accept header names it."""
    if OPENMETRICS not in accept:
        return b"".join(map(generate_latest, registries)), CONTENT_TYPE
    parts = [openmetrics.generate_latest(one).removesuffix(END) for one in registries]  # type: ignore[no-untyped-call]
    return b"".join([*parts, END]), openmetrics.CONTENT_TYPE_LATEST


# bytes that are used, by any process, and bytes in all; None where they cannot be read
DeviceMemory = Callable[[], tuple[int, int] | None]


@dataclass(frozen=True, slots=True, eq=False)
class QueueCollector(Collector):
    """Reads the batcher, so that the numbers add up."""

    batcher: Batcher
    device_memory: DeviceMemory | None = None

    def collect(self) -> Iterable[Metric]:
        batcher = self.batcher
        for name, text, counts in (
            (
                "bert_queue_requests",
                "Requests of clients by how they ended; received = the others + bert_inflight_requests",
                batcher.counts,
            ),
            ("bert_canary_requests", "Self-checks by how they ended; no request of a client", batcher.canaries),
        ):
            ended = CounterMetricFamily(name, text, labels=["outcome"])
            for outcome, count in asdict(counts).items():
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
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(name, text, value=value)

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        """Name, description and value of each."""
        batcher, queue, now = self.batcher, self.batcher.queue, self.batcher.clock()
        running, in_flight = batcher.running, batcher.unanswered
        oldest = now - queue.oldest if queue.oldest is not None else 0.0
        busy = batcher.watchdog.busy.at(now)
        yield "bert_inflight_requests", "Requests of clients that wait or run", in_flight
        yield "bert_waiting_requests", "Requests of clients with at least one queued sequence", in_flight - running
        yield "bert_running_requests", "Requests of clients that are wholly in runs", running
        yield (
            "bert_waiting_tokens",
            "Tokens in the queue, with those expected from tokenizing",
            queue.tokens + queue.reserved,
        )
        yield "bert_oldest_wait_seconds", "How long the oldest queued request has waited", oldest
        yield (
            "bert_wait_seconds_estimated",
            "Estimated time until all that is queued has been dispatched",
            queue.drain_seconds,
        )
        yield (
            "bert_token_budget",
            "Tokens in one batch: measured at start, lowered when memory runs out",
            queue.token_budget,
        )
        yield (
            "bert_busy_ratio",
            "Share of the device (per-core sessions, or the whole) that runs used in the last 15 s or so",
            busy,
        )
        yield "bert_tokens_per_second", "Measured rate of full batches", queue.tokens_per_second
        if self.device_memory is not None and (memory := self.device_memory()) is not None:
            used, total = memory
            yield "bert_device_memory_used_bytes", "Memory of the GPU that is in use, by any process", used
            yield "bert_device_memory_bytes", "Memory of the GPU", total


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """The artifact, readiness, and prometheus_client's own figures of each process."""

    artifact: Artifact
    ready: bool
    processes: Mapping[str, int]  # process id by name; no label for the name ""

    def collect(self) -> Iterable[Metric]:
        manifest = self.artifact.manifest
        labels = {
            "model": manifest.name,
            "artifact": self.artifact.digest,
            "precision": manifest.precision,
            "device": manifest.device,
            "version": version("packbert"),
        }
        info = GaugeMetricFamily("bert_info", "Always 1; the labels say what answers", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        yield GaugeMetricFamily("bert_ready", "1 while /ready is 200", value=float(self.ready))
        families: dict[str, Metric] = {}
        for name, process in self.processes.items():
            for family in ProcessCollector(pid=_constant(process), registry=None).collect():
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {"process": name} if name else {}, sample.value)
        yield from families.values()


def register_state(artifact: Artifact, processes: Mapping[str, int], *, ready: bool) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StateCollector(artifact, ready, processes))
    return registry


def _constant(process: int) -> Callable[[], int]:
    return lambda: process
