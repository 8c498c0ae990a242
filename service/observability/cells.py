"""The numbers of one process, in memory or in files, and the sums over the files of several processes."""

import json
import mmap
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from .series import TABLE, Labels, Series

ROOM = 2**20  # cells, for 8,000 models: addresses only, memory and files grow by the pages that are counted in

Values: TypeAlias = "memoryview[float]"
Files: TypeAlias = tuple[int, int]  # descriptors: of the numbers, and of the labels' values
Histogram = tuple[int, Sequence[float], int]  # with one set of labels: its first cell, the bounds, the cell of the sum


class Cells:
    """A number for each series of TABLE, a histogram has several. Not thread-safe: the event loop changes them.

    With `files`, for the numbers and for the labels' values that were not known from the start, they outlive the
    process: a later process with these files continues them.
    """

    def __init__(self, files: Files | None = None) -> None:
        self.places: dict[str, dict[Labels, int]] = {name: {} for name in TABLE}  # the first cell of each
        self.end, self._labels = 0, files[1] if files else None
        for series in TABLE.values():
            for labels in series.known:
                self._place(series, labels)
        if files is not None:
            os.ftruncate(files[0], 8 * ROOM)
            added = os.pread(files[1], os.fstat(files[1]).st_size, 0)  # by a process with these files, in its order
            for name, *values in map(json.loads, added.splitlines()):
                self._place(TABLE[name], tuple(values))
        self.values: Values = memoryview(mmap.mmap(files[0] if files else -1, 8 * ROOM)).cast("d")

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

    def add(self, theirs: "Cells") -> None:
        """Adds the numbers of another process; of those that no sum makes sense for, the largest counts."""
        for series in TABLE.values():
            combine = max if series.largest else operator.add
            for labels, first in theirs.places[series.name].items():
                at = self.at(series, *labels)
                for number in range(series.size):
                    self.values[at + number] = combine(self.values[at + number], theirs.values[first + number])

    def _place(self, series: Series, labels: Labels) -> None:
        self.places[series.name][labels] = self.end
        self.end += series.size


def sum_cells(files: Iterable[Files]) -> Cells:
    """The sums over the files of several processes, running or ended."""
    total = Cells()
    for each in files:
        total.add(Cells(each))
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
