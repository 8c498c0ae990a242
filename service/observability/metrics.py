"""What requests and runs count, in one process, and the sums over several."""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Exemplar

from packbert.service.observability import series
from packbert.service.observability.cells import CellCollector, Cells, observe, sum_cells
from packbert.service.observability.scrape import DeviceMemory, QueueCollector
from packbert.service.observability.series import OUTCOMES, REASONS, STAGES, TASKS
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import BatchReport
from packbert.service.trace_context import current_exemplar


class Metrics:
    """All series, from the start at zero; label values come from fixed sets.

    `name` and `folder` are those of a worker: its counts go into files there, which `aggregate` reads.
    """

    exemplars = False  # the latencies name traces; not where several processes count

    def __init__(self, name: str = "", folder: Path | None = None) -> None:
        self._cells = Cells(folder / name if folder else None)
        self.cells = self._cells.values
        self._registry, self._queue_registry = CollectorRegistry(), CollectorRegistry()
        self._exemplars: dict[int, Exemplar] = {}  # by cell
        self._registry.register(CellCollector(self._cells, self._exemplars))
        at, histogram = self._cells.at, self._cells.histogram
        sizes = (series.TEXTS, series.TOKENS, series.BODY_BYTES, series.RESPONSE_BYTES)
        common = [*(histogram(series.STAGE, stage) for stage in STAGES), *map(histogram, sizes)]
        self._answered = {
            task: (at(series.REQUESTS, task, "200"), [histogram(series.SECONDS, task), *common]) for task in TASKS
        }
        of_batch = (series.BATCH_TOKENS, series.BATCH_SEQUENCES, series.FORWARD, series.WAIT)
        self._batch, self._canary = list(map(histogram, of_batch)), [histogram(series.CANARY)]
        self._tokens, self._slots = at(series.RUN_TOKENS), at(series.SLOTS)
        self._tokenizing = at(series.TOKENIZING_REQUESTS), at(series.TOKENIZING_CHARACTERS)

    def observe_queue(
        self, models: Mapping[str, Batcher], provider: str, *, degraded: bool, device_memory: DeviceMemory | None = None
    ) -> None:
        """`models` are the batchers that share the queue, by the names of their models."""
        self._queue_registry.register(QueueCollector(models, device_memory))
        self.cells[self._cells.at(series.PROVIDER, provider)] = 1.0
        self.cells[self._cells.at(series.DEGRADED)] = float(degraded)

    def loaded(self, model: str, seconds: float) -> None:
        observe(self.cells, [self._cells.histogram(series.LOAD, model)], [seconds])

    def swapped(self, model: str, outcome: str) -> None:
        self.cells[self._cells.at(series.SWAPS, model, outcome)] += 1.0

    def in_memory(self, model: str, is_in_memory: bool) -> None:
        self.cells[self._cells.at(series.IN_MEMORY, model)] = float(is_in_memory)

    def batch(self, report: BatchReport) -> None:
        """A self-check's run counts apart from those for clients."""
        if report.canary:
            observe(self.cells, self._canary, [report.ran_seconds])
            return
        self.cells[self._tokens] += report.tokens
        self.cells[self._slots] += report.slots
        numbers = (report.tokens, report.sequences, report.ran_seconds, report.waited_seconds)
        observe(self.cells, self._batch, numbers)

    def answered(
        self, task: str, *, seconds: float, stages: Sequence[float], sizes: Sequence[float], truncated: int
    ) -> None:
        """A response with 200. `stages`: seconds of each of STAGES; `sizes`: texts, tokens, bytes of both bodies."""
        count, histograms = self._answered[task]
        self.cells[count] += 1.0
        observe(self.cells, histograms, (seconds, *stages, *sizes))
        if self.exemplars and (labels := current_exemplar()):
            first, bounds, _ = histograms[0]
            self._exemplars[first + bisect_left(bounds, seconds)] = Exemplar(labels, seconds, time.time())
        if truncated:
            self.cells[self._cells.at(series.TRUNCATED)] += truncated

    def tokenizing(self, requests: int, characters: int) -> None:
        of_requests, of_characters = self._tokenizing
        self.cells[of_requests], self.cells[of_characters] = requests, characters

    def refused(self, task: str, status: int, reason: str, seconds: float | None = None) -> None:
        """A response without 200; `seconds`: None where it has no latency, because no task received the request."""
        reason = reason if reason in REASONS else "invalid"
        self.cells[self._cells.at(series.REQUESTS, task, str(status))] += 1.0
        self.cells[self._cells.at(series.ERRORS, reason)] += 1.0
        if seconds is not None:
            outcome = OUTCOMES.get(reason, "refused")
            observe(self.cells, [self._cells.histogram(series.ERROR_SECONDS, outcome)], [seconds])

    def shared(self, model: str, outcome: str) -> None:
        """A request of another model that `model` shares."""
        self.cells[self._cells.at(series.SHARED, model, outcome)] += 1.0

    def compared(self, model: str, seconds: Sequence[float]) -> None:
        """Two answers to a request; `seconds` of the model that answered and of the shadow, which is `model`."""
        self.shared(model, "compared")
        histograms = [self._cells.histogram(series.SHADOW_SECONDS, model, by) for by in ("model", "shadow")]
        observe(self.cells, histograms, seconds)

    def agreed(self, model: str, cosines: Sequence[float], agree: Sequence[bool]) -> None:
        """A part of two answers that are compared."""
        histogram = self._cells.histogram(series.COSINE, model)
        observe(self.cells, [histogram] * len(cosines), [max(0.0, one) for one in cosines])
        for one in agree:
            self.cells[self._cells.at(series.FIRST, model, str(one).lower())] += 1.0

    def operational(self, path: str, status: int) -> None:
        """A response of the route `path`, which is as declared: no client chooses it."""
        self.cells[self._cells.at(series.OPERATIONAL, path, str(status))] += 1.0

    @property
    def registries(self) -> tuple[CollectorRegistry, CollectorRegistry]:
        """Of the requests and of the queue."""
        return self._registry, self._queue_registry

    def queue_text(self) -> bytes:
        """The metrics of the queue, which only the process with the engine has."""
        return generate_latest(self._queue_registry)


def aggregate(folder: Path) -> bytes:
    """The sums over the metric files in `folder`: of all processes, running or ended."""
    registry = CollectorRegistry()
    registry.register(CellCollector(sum_cells(folder)))
    return generate_latest(registry)
