"""What is read at a scrape, the queue and the state, and its text formats."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ..artifact import Artifact
from ..scheduling.batcher import Batcher
from ..scheduling.watchdog import RequestCounts
from . import series
from .series import Labels, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"
# bytes that are used, by any process, and bytes in all; None if they cannot be read
DeviceMemory = Callable[[], tuple[int, int] | None]
Reading = tuple[Series, Labels, float]


def render(collectors: Sequence[Collector], accept: str = "") -> tuple[bytes, str]:
    """The text and its media type: OpenMetrics if the scraper's Accept header names it."""
    if OPENMETRICS not in accept:
        return b"".join(map(generate_latest, collectors)), CONTENT_TYPE
    parts = [openmetrics.generate_latest(each).removesuffix(END) for each in collectors]  # type: ignore[no-untyped-call]
    return b"".join([*parts, END]), openmetrics.CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """The artifact, readiness, and prometheus_client's own figures of each process."""

    artifacts: Sequence[Artifact]  # of each model, the default first
    processes: Mapping[str, int]  # process id by name; no label for the name ""
    readiness: Mapping[str, str]  # of each model by name: why it would not answer now, empty if it would

    def collect(self) -> Iterable[Metric]:
        names = ["model", "license", "language", "digest", "precision", "device", "version"]
        info = GaugeMetricFamily("bert_info", "Always 1; the labels say what answers", labels=names)
        for artifact in self.artifacts:
            manifest, identity = artifact.manifest, artifact.manifest.identity
            languages = ", ".join(identity.languages)
            values = [manifest.name, identity.license, languages, artifact.digest, manifest.precision, manifest.device]
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


def read_queue(models: Mapping[str, Batcher], device_memory: DeviceMemory | None, processes: int) -> Iterator[Reading]:
    """The numbers of the queue that `models` (by name) share; each of the `processes` of this machine has its queue."""
    batchers = models.values()
    yield from _by_outcome(series.QUEUE_REQUESTS, (), [each.counts for each in batchers])
    yield from _by_outcome(series.CANARY_REQUESTS, (), [each.canaries for each in batchers])
    if len(batchers) > 1:
        for name, of_model in models.items():
            yield from _by_outcome(series.MODEL_REQUESTS, (name,), [of_model.counts])
    batcher = next(iter(batchers))  # queue, clock and watchdog are those of all
    queue, now = batcher.queue, batcher.clock()
    in_flight, waiting = sum(each.counts.in_flight for each in batchers), queue.waiting_requests
    numbers: dict[Series, float] = {
        series.FAILED_RUNS: sum(each.failures.failed_runs for each in batchers),
        series.OUT_OF_MEMORY_RUNS: sum(each.failures.out_of_memory for each in batchers),
        series.INFLIGHT: in_flight,
        series.WAITING: waiting,
        series.RUNNING: in_flight - waiting,
        series.WAITING_TOKENS: queue.expected,
        series.OLDEST_WAIT: now - queue.oldest if queue.oldest is not None else 0.0,
        series.WAIT_ESTIMATED: queue.drain_seconds,
        series.TOKEN_BUDGET: queue.token_budget,
        series.BUSY: batcher.watchdog.busy.at(now) / processes,
        series.RATE: queue.tokens_per_second,
    }
    if device_memory is not None:
        used, total = device_memory() or (math.nan, math.nan)
        numbers |= {series.DEVICE_MEMORY_USED: used, series.DEVICE_MEMORY: total}
    for each, value in numbers.items():
        yield each, (), value


def _by_outcome(name: Series, labels: Labels, counts: Sequence[RequestCounts]) -> Iterator[Reading]:
    """The sums of the counts."""
    for outcome in RequestCounts.__slots__:
        yield name, (*labels, outcome), sum(getattr(each, outcome) for each in counts)
