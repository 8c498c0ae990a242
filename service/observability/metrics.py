"""What requests and runs count, and the content of /metrics: the counts of all workers, the queue and the state."""

import math
import os
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from ..artifact import Artifact
from ..scheduling.batcher import Batcher
from ..scheduling.watchdog import BatchReport, RequestCounts
from ..turns import current_exemplar
from . import series
from .cells import CellCollector, Cells, Files, Histogram, sum_cells
from .series import GAUGE, OUTCOMES, QUEUE_COUNTERS, REASONS, STAGES, TABLE, UNKNOWN, Labels, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"
# bytes that are used, by any process, and bytes in all; None if they cannot be read
DeviceMemory = Callable[[], tuple[int, int] | None]
Reading = tuple[Series, Labels, float]


async def _at_once() -> None:
    """There are no other workers."""


class Metrics:
    """All series, from the start at zero, those of tasks when a route adds them; label values come from fixed sets.

    `name` is that of a worker, and `files` those of all workers by name: it counts in its own, and shows the sums.
    """

    update_workers: Callable[[], Awaitable[None]] = staticmethod(_at_once)  # lets the other workers write theirs down
    exemplars = False  # the latencies name traces; not if several processes count

    def __init__(self, name: str = "", files: Mapping[str, Files] | None = None) -> None:
        self._files = files or {}
        self.processes: Mapping[str, int] = {"": os.getpid()}  # ids by name, which "" has none
        self._cells = Cells(self._files.get(name))
        self.cells = self._cells.values
        self._exemplars: dict[int, Exemplar] = {}  # by cell
        self._count_lost()
        self._read_queue: Callable[[], Iterable[Reading]] = tuple  # nothing, until there is a queue
        at, histogram = self._cells.at, self._cells.histogram
        sizes = (series.TEXTS, series.TOKENS, series.BODY_BYTES, series.RESPONSE_BYTES)
        self._of_all = [*(histogram(series.STAGE, stage) for stage in STAGES), *map(histogram, sizes)]
        self._answered: dict[str, tuple[int, list[Histogram]]] = {}  # by task: the cells that an answer changes
        of_batch = (series.BATCH_TOKENS, series.BATCH_SEQUENCES, series.FORWARD, series.WAIT)
        self._batch, self._canary = list(map(histogram, of_batch)), [histogram(series.CANARY)]
        self._tokens, self._slots = at(series.RUN_TOKENS), at(series.SLOTS)
        self._tokenizing = at(series.TOKENIZING_REQUESTS), at(series.TOKENIZING_CHARACTERS)

    def observe_queue(
        self, models: Mapping[str, Batcher], provider: str, *, degraded: bool, device_memory: DeviceMemory | None = None
    ) -> None:
        """`models` are the batchers that share the queue, by the names of their models."""
        self._read_queue = partial(read_queue, models, device_memory, len(self._files) or 1)
        self.cells[self._cells.at(series.PROVIDER, provider)] = 1.0
        self.cells[self._cells.at(series.DEGRADED)] = float(degraded)

    def loaded(self, model: str, seconds: float) -> None:
        self._observe([self._cells.histogram(series.LOAD, model)], [seconds])

    def swapped(self, model: str, outcome: str) -> None:
        self.cells[self._cells.at(series.SWAPS, model, outcome)] += 1.0

    def in_memory(self, model: str, is_in_memory: bool) -> None:
        self.cells[self._cells.at(series.IN_MEMORY, model)] = float(is_in_memory)

    def batch(self, report: BatchReport) -> None:
        """A self-check's run counts apart from those for clients."""
        if report.canary:
            self._observe(self._canary, [report.ran_seconds])
            return
        self.cells[self._tokens] += report.tokens
        self.cells[self._slots] += report.slots
        numbers = (report.tokens, report.sequences, report.ran_seconds, report.waited_seconds)
        self._observe(self._batch, numbers)

    def answered(
        self, task: str, *, seconds: float, stages: Sequence[float], sizes: Sequence[float], truncated: int
    ) -> None:
        """A response with 200. `stages`: seconds of each of STAGES; `sizes`: texts, tokens, bytes of both bodies."""
        count, histograms = self._answered.get(task) or self.add_task(task)
        self.cells[count] += 1.0
        self._observe(histograms, (seconds, *stages, *sizes))
        if self.exemplars and (labels := current_exemplar()):
            first, bounds, _ = histograms[0]
            self._exemplars[first + bisect_left(bounds, seconds)] = Exemplar(labels, seconds, time.time())
        if truncated:
            self.cells[self._cells.at(series.TRUNCATED)] += truncated

    def add_task(self, task: str) -> tuple[int, list[Histogram]]:
        """Counts its answers, from zero."""
        histograms = [self._cells.histogram(series.SECONDS, task), *self._of_all]
        self._answered[task] = self._cells.at(series.REQUESTS, task, "200"), histograms
        return self._answered[task]

    def tokenizing(self, requests: int, characters: int) -> None:
        of_requests, of_characters = self._tokenizing
        self.cells[of_requests], self.cells[of_characters] = requests, characters

    def refused(self, task: str, status: int, reason: str, seconds: float | None = None) -> None:
        """A response without 200; `seconds`: None if it has no latency, because no task received the request."""
        reason = reason if reason in REASONS else "invalid"
        self.cells[self._cells.at(series.REQUESTS, task, str(status))] += 1.0
        self.cells[self._cells.at(series.ERRORS, reason)] += 1.0
        if seconds is not None:
            outcome = OUTCOMES.get(reason, "refused")
            self._observe([self._cells.histogram(series.ERROR_SECONDS, outcome)], [seconds])

    def shared(self, model: str, outcome: str) -> None:
        """A request of another model that `model` shares."""
        self.cells[self._cells.at(series.SHARED, model, outcome)] += 1.0

    def compared(self, model: str, seconds: Sequence[float]) -> None:
        """Two answers to a request; `seconds` of the model that answered and of the shadow, which is `model`."""
        self.shared(model, "compared")
        histograms = [self._cells.histogram(series.SHADOW_SECONDS, model, by) for by in ("model", "shadow")]
        self._observe(histograms, seconds)

    def agreed(self, model: str, cosines: Sequence[float], agree: Sequence[bool]) -> None:
        """A part of two answers that are compared."""
        histogram = self._cells.histogram(series.COSINE, model)
        self._observe([histogram] * len(cosines), [max(0.0, cosine) for cosine in cosines])
        for agrees in agree:
            self.cells[self._cells.at(series.FIRST, model, str(agrees).lower())] += 1.0

    def operational(self, path: str, status: int) -> None:
        """A response of the route `path`, which is as declared: no client chooses it."""
        self.cells[self._cells.at(series.OPERATIONAL, path, str(status))] += 1.0

    def update_queue(self) -> None:
        """Takes the numbers of the queue as they are now."""
        for row, labels, value in self._read_queue():
            at = self._cells.at(row, *labels)
            self.cells[at] = value + self._before.get((row.name, labels), 0.0)

    def collector(self) -> CellCollector:
        """All series at this moment: of all workers if there are several."""
        self.update_queue()
        return CellCollector(sum_cells(self._files.values()) if self._files else self._cells, self._exemplars)

    def _observe(self, histograms: Sequence[Histogram], values: Sequence[float]) -> None:
        """Adds one value to each histogram."""
        cells = self.cells
        for (first, bounds, total), value in zip(histograms, values, strict=True):
            cells[first + bisect_left(bounds, value)] += 1.0
            cells[total] += value

    def _count_lost(self) -> None:
        """Counts what an earlier process with this file had not answered when it ended, and drops its gauges."""
        places, cells = self._cells.places, self.cells
        lost = sum(cells[at] for at in places[series.IN_FLIGHT.name].values())
        for row in TABLE.values():
            for at in places[row.name].values() if row.kind is GAUGE else ():
                cells[at] = 0.0
        if lost:
            cells[self._cells.at(series.REQUESTS, UNKNOWN, "500")] += lost
            cells[self._cells.at(series.ERRORS, "worker_ended")] += lost
        # the counters of a queue begin at zero
        self._before: dict[tuple[str, Labels], float] = {}
        for row in QUEUE_COUNTERS:
            ends = {labels: cells[at] for labels, at in places[row.name].items()}
            for labels in [labels for labels in ends if labels[-1:] == ("received",)]:
                others = [value for each, value in ends.items() if each[:-1] == labels[:-1] and each != labels]
                ends[*labels[:-1], "failed"] = ends.get((*labels[:-1], "failed"), 0.0) + ends[labels] - sum(others)
            self._before |= {(row.name, labels): value for labels, value in ends.items()}


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
