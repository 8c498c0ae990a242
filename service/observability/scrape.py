"""What is read at a scrape, and its text formats."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from packbert.service.artifact import Artifact
from packbert.service.observability.series import COUNTER, GAUGE
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import RequestCounts

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
    """Reads the batchers, so that the numbers add up."""

    models: Mapping[str, Batcher]  # that share the queue, by name: those that answer now
    device_memory: DeviceMemory | None

    def collect(self) -> Iterable[Metric]:
        batchers = self.models.values()
        about = "Requests of clients by how they ended; received = the others + bert_inflight_requests"
        yield _by_outcome("bert_queue_requests", about, {"": [one.counts for one in batchers]})
        about = "Self-checks by how they ended; no request of a client"
        yield _by_outcome("bert_canary_requests", about, {"": [one.canaries for one in batchers]})
        if len(batchers) > 1:
            by_model = {name: [one.counts] for name, one in self.models.items()}
            yield _by_outcome("bert_model_requests", "bert_queue_requests by model, where there are several", by_model)
        for kind, name, text, value in self._numbers():
            yield kind(name, text, value=value)

    def _numbers(self) -> Iterable[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, float]]:
        """Kind, name, description and value of each."""
        batchers = self.models.values()
        batcher = next(iter(batchers))  # queue, clock and watchdog are those of all
        queue, now = batcher.queue, batcher.clock()
        in_flight, waiting = sum(one.counts.in_flight for one in batchers), queue.waiting_requests
        failed_runs = sum(one.failures.failed_runs for one in batchers)
        oldest = now - queue.oldest if queue.oldest is not None else 0.0
        yield COUNTER, "bert_failed_runs", "Runs that raised or gave no finite answer", failed_runs
        about = "Failed runs whose memory could not be allocated; each lowers the token budget"
        yield COUNTER, "bert_out_of_memory_runs", about, sum(one.failures.out_of_memory for one in batchers)
        yield GAUGE, "bert_inflight_requests", "Requests of clients that wait or run", in_flight
        about = "Requests of clients with at least one queued sequence"
        yield GAUGE, "bert_waiting_requests", about, waiting
        yield GAUGE, "bert_running_requests", "Requests of clients that are wholly in runs", in_flight - waiting
        yield GAUGE, "bert_waiting_tokens", "Tokens in the queue, with those expected from tokenizing", queue.expected
        yield GAUGE, "bert_oldest_wait_seconds", "How long the oldest queued request has waited", oldest
        about = "Estimated time until all that is queued has been dispatched"
        yield GAUGE, "bert_wait_seconds_estimated", about, queue.drain_seconds
        about = "Tokens in one batch: measured at start, lowered when memory runs out"
        yield GAUGE, "bert_token_budget", about, queue.token_budget
        about = "Share of the device (per-core sessions, or the whole) that runs used in the last 15 s or so"
        yield GAUGE, "bert_busy_ratio", about, batcher.watchdog.busy.at(now)
        yield GAUGE, "bert_tokens_per_second", "Measured rate of full batches", queue.tokens_per_second
        if self.device_memory is not None and (memory := self.device_memory()) is not None:
            used, total = memory
            yield GAUGE, "bert_device_memory_used_bytes", "Memory of the GPU that is in use, by any process", used
            yield GAUGE, "bert_device_memory_bytes", "Memory of the GPU", total


def _by_outcome(name: str, text: str, counts: Mapping[str, Sequence[RequestCounts]]) -> Metric:
    """The sums of counts by the name of a model; under "" without that label."""
    family = CounterMetricFamily(name, text, labels=["outcome"] if "" in counts else ["model", "outcome"])
    for model, each in counts.items():
        for outcome in RequestCounts.__slots__:
            total = sum(getattr(one, outcome) for one in each)
            family.add_metric([model, outcome] if model else [outcome], total)
    return family


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """The artifact, readiness, and prometheus_client's own figures of each process."""

    artifacts: Sequence[Artifact]  # one for each model, the default first
    processes: Mapping[str, int]  # process id by name; no label for the name ""
    readiness: Mapping[str, str]  # of each model, as Backend.readiness

    def collect(self) -> Iterable[Metric]:
        names = ["model", "license", "language", "digest", "precision", "device", "version"]
        info = GaugeMetricFamily("bert_info", "Always 1; the labels say what answers", labels=names)
        for one in self.artifacts:
            manifest, identity = one.manifest, one.manifest.identity
            languages = ", ".join(identity.languages)
            values = [manifest.name, identity.license, languages, one.digest, manifest.precision, manifest.device]
            info.add_metric([*values, version("packbert")], 1)
        yield info
        ready = {name: float(not reason) for name, reason in self.readiness.items()}
        yield GaugeMetricFamily("bert_ready", "1 while /ready is 200", value=next(iter(ready.values()), 0.0))
        by_model = GaugeMetricFamily("bert_model_ready", "1 while /models/NAME/ready is 200", labels=["model"])
        for name, value in ready.items():
            by_model.add_metric([name], value)
        yield by_model
        families: dict[str, Metric] = {}
        for name, process in self.processes.items():
            for family in ProcessCollector(pid=partial(int, process), registry=None).collect():
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {"process": name} if name else {}, sample.value)
        yield from families.values()


def register_state(
    artifacts: Sequence[Artifact], processes: Mapping[str, int], readiness: Mapping[str, str]
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StateCollector(artifacts, processes, readiness))
    return registry
