"""What every request of a task adds to: cells of 8 bytes, in memory or in a file that all processes' sums include.

prometheus_client's `Histogram.observe` takes 2.5 us a value, and 4.2 us where it writes a file; a request has eight of
them. A cell takes 0.1 us. The collector gives them to prometheus_client as its own families.
"""

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeAlias

from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from service.metrics.names import (
    OUTCOMES,
    REQUEST_BYTES,
    REQUEST_SECONDS,
    REQUEST_TEXTS,
    REQUEST_TOKENS,
    STAGE_SECONDS,
    STAGES,
    TASKS,
)

Cells: TypeAlias = "list[float] | memoryview[float]"
RECEIVE, PROCESS = 0, 1  # the cells that count requests in flight
IN_FLIGHT = {"receive": RECEIVE, "process": PROCESS}
SUFFIX = ".requests"  # of the files


class Series(NamedTuple):
    """One histogram's cells: a count for each bucket, one for what is above them, and the sum."""

    first: int
    bounds: Sequence[float]
    total: int


def observe(cells: Cells, series: Sequence[Series], values: Sequence[float]) -> None:
    """Adds one value to each series. Not thread-safe: the event loop calls it."""
    for (first, bounds, total), value in zip(series, values, strict=True):
        cells[first + bisect_left(bounds, value)] += 1.0
        cells[total] += value


def find_cell(series: Series, value: float) -> int:
    """The cell that counts `value`."""
    return series.first + bisect_left(series.bounds, value)


class Histogram:
    """One series for each value of the label, or a single one without a label."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], first: int, label: str = "", values: Sequence[str] = ("",)
    ) -> None:
        self.name, self.text, self.label = name, text, label
        size = len(bounds) + 2
        self.end = first + size * len(values)
        starts = range(first, self.end, size)
        self.series = {value: Series(at, bounds, at + size - 1) for value, at in zip(values, starts, strict=True)}

    def family(self, cells: Sequence[float], exemplars: Mapping[int, Exemplar]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self.text, labels=[self.label] if self.label else [])
        for value, series in self.series.items():
            counts = accumulate(cells[series.first : series.total])
            bounds = [*map(floatToGoString, series.bounds), "+Inf"]
            labels = [value] if self.label else []
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for cell, bound, count in zip(range(series.first, series.total), bounds, counts, strict=True):
                named = exemplars.get(cell)
                buckets.append((bound, count) if named is None else (bound, count, named))
            family.add_metric(labels, buckets, cells[series.total])
        return family


SECONDS = Histogram(
    "bert_request_seconds",
    "Requests with 200: from the last byte of the body received to the response",
    *(REQUEST_SECONDS, len(IN_FLIGHT), "task", TASKS),
)
ERROR_SECONDS = Histogram(
    "bert_error_seconds",
    "Task requests without 200, by how they ended: from the last byte of the body, or from the head where the body was "
    "not read, to the response",
    *(REQUEST_SECONDS, SECONDS.end, "outcome", ("refused", *dict.fromkeys(OUTCOMES.values()))),
)
STAGE = Histogram(
    "bert_stage_seconds",
    "Requests with 200, by stage: tokenizing, waiting in the queue, runs of the model, formatting the response",
    *(STAGE_SECONDS, ERROR_SECONDS.end, "stage", STAGES),
)
TOKENS = Histogram("bert_request_tokens", "Tokens in a request with 200", REQUEST_TOKENS, STAGE.end)
TEXTS = Histogram("bert_request_texts", "Texts, pairs, windows or passes in a 200", REQUEST_TEXTS, TOKENS.end)
BODY_BYTES = Histogram("bert_request_bytes", "Decoded body of a request with 200", REQUEST_BYTES, TEXTS.end)
RESPONSE_BYTES = Histogram("bert_response_bytes", "Body of a response with 200", REQUEST_BYTES, BODY_BYTES.end)
HISTOGRAMS = (SECONDS, ERROR_SECONDS, STAGE, TOKENS, TEXTS, BODY_BYTES, RESPONSE_BYTES)


def open_cells(file: Path | None) -> Cells:
    """Zeros, or what an earlier process of the same name has counted in `file`, with none of its requests in flight."""
    size = RESPONSE_BYTES.end * array("d").itemsize
    if file is None:
        return [0.0] * RESPONSE_BYTES.end
    with file.open("a+b") as stream:
        stream.truncate(size)
        cells = memoryview(mmap.mmap(stream.fileno(), size)).cast("d")
    for number in IN_FLIGHT.values():
        cells[number] = 0.0
    return cells


def sum_cells(folder: Path) -> list[float]:
    """The sums over the files of all processes, running or ended."""
    parts = [array("d", file.read_bytes()) for file in folder.glob(f"*{SUFFIX}")]
    whole = [part for part in parts if len(part) == RESPONSE_BYTES.end]  # a process may be creating its file
    return [sum(column) for column in zip([0.0] * RESPONSE_BYTES.end, *whole, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class TallyCollector(Collector):
    """The cells as metrics, at the moment of the scrape."""

    cells: Sequence[float]
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)  # by cell

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily(
            "bert_inflight_http_requests",
            "Task requests whose body is being received, or whose response is being made and sent",
            labels=["stage"],
        )
        for stage, number in IN_FLIGHT.items():
            gauge.add_metric([stage], self.cells[number])
        yield gauge
        for histogram in HISTOGRAMS:
            yield histogram.family(self.cells, self.exemplars)
