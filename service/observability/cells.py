"""The numbers of one process, in memory or in files, and the sums over the files of several processes."""

import json
import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from packbert.service.observability.series import GAUGE, TABLE, Labels, Series

ROOM = 2**20  # cells, for 8,000 models: addresses only, memory and files grow by the pages that are counted in
VALUES, LABELS = ".values", ".labels"  # suffixes of a process's files


Values: TypeAlias = "memoryview[float]"
Histogram = tuple[int, Sequence[float], int]  # with one set of labels: its first cell, the bounds, the cell of the sum


def observe(cells: Values, histograms: Sequence[Histogram], values: Sequence[float]) -> None:
    """Adds one value to each histogram."""
    for (first, bounds, total), value in zip(histograms, values, strict=True):
        cells[first + bisect_left(bounds, value)] += 1.0
        cells[total] += value


class Cells:
    """A number for each series of TABLE, a histogram's in several. Not thread-safe: the event loop changes them.

    With a `path` they are in files, which outlive the process: the numbers, and the labels' values that were not known
    from the start. A later process with that path continues them, except for the gauges.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.places: dict[str, dict[Labels, int]] = {name: {} for name in TABLE}  # the first cell of each
        self.end = 0
        self._labels: int | None = None  # descriptor of the file: when the first error is counted, none may be free
        for series in TABLE.values():
            for labels in series.known:
                self._place(series, labels)
        if path is None:
            self.values: Values = memoryview(mmap.mmap(-1, 8 * ROOM)).cast("d")
            return
        with path.with_suffix(VALUES).open("a+b") as file:
            file.truncate(8 * ROOM)
            self.values = memoryview(mmap.mmap(file.fileno(), 8 * ROOM)).cast("d")
        self._labels = os.open(path.with_suffix(LABELS), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.read_labels(path)
        for series in TABLE.values():
            for at in self.places[series.name].values() if series.kind is GAUGE else ():
                self.values[at] = 0.0

    def at(self, series: Series, *labels: str) -> int:
        """The first cell of a series; new values of its labels take the next cells."""
        places = self.places[series.name]
        if labels not in places:
            if self._labels is not None:
                os.write(self._labels, json.dumps([series.name, *labels]).encode() + b"\n")
            self._place(series, labels)
        return places[labels]

    def histogram(self, series: Series, *labels: str) -> Histogram:
        first = self.at(series, *labels)
        return first, series.bounds, first + series.size - 1

    def read_labels(self, path: Path) -> None:
        """Gives cells to the labels' values that a process with this path has added, in its order."""
        for line in path.with_suffix(LABELS).read_text("utf-8").splitlines():
            name, *labels = json.loads(line)
            self._place(TABLE[name], tuple(labels))

    def _place(self, series: Series, labels: Labels) -> None:
        self.places[series.name][labels] = self.end
        self.end += series.size


def sum_cells(folder: Path) -> Cells:
    """The sums over the files of all processes, running or ended."""
    total = Cells()
    for path in folder.glob(f"*{VALUES}"):
        if not path.with_suffix(LABELS).exists():
            continue  # a process is creating its files
        theirs = Cells()
        theirs.read_labels(path)
        with path.open("rb") as file:
            values = array("d", file.read(8 * theirs.end))
        for series in TABLE.values():
            for labels, first in theirs.places[series.name].items():
                at = total.at(series, *labels)
                for number in range(series.size):
                    total.values[at + number] += values[first + number]
    return total


@dataclass(frozen=True, slots=True, eq=False)
class CellCollector(Collector):
    """The cells as metrics, at the moment of the scrape."""

    cells: Cells
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)  # by cell

    def collect(self) -> Iterable[Metric]:
        for series in TABLE.values():
            family = series.kind(series.name, series.text, labels=series.labels)
            for labels, at in self.cells.places[series.name].items():
                if isinstance(family, HistogramMetricFamily):
                    total = self.cells.values[at + series.size - 1]
                    family.add_metric(labels, list(self._buckets(series, at)), total)
                else:
                    family.add_metric(labels, self.cells.values[at])
            yield family

    def _buckets(self, series: Series, first: int) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        bounds = [*map(floatToGoString, series.bounds), "+Inf"]
        counts = accumulate(self.cells.values[first : first + len(bounds)])
        for cell, (bound, count) in enumerate(zip(bounds, counts, strict=True), first):
            named = self.exemplars.get(cell)
            yield (bound, count) if named is None else (bound, count, named)
