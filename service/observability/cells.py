"""Names and buckets of the metrics, and the cells that requests add to, in memory or in a file."""

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

TASKS = (
    *("embed", "fill_mask", "nsp", "predict", "tag", "answer", "choose", "similarity", "rerank", "root"),
    *("embeddings", "classify", "score", "pooling", "infer", "tokenize", "decode", "embed_all", "embed_sparse"),
    "attention",
)
UNKNOWN = "unknown"  # the task of a request that was refused before its path was read, or whose path has none
MISDIRECTED = {404: "not_found", 405: "method_not_allowed"}  # reasons of the responses that no route gave
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
    "method_not_allowed",
    "run_failed",
    "not_finite",
    "out_of_memory",
    "tokenizer_failed",
    "internal",
    "client_closed",
    "slow",
    "headers_too_large",
    "malformed",
    "connections_full",
)
OUTCOMES = {  # of requests without 200, by reason; "refused" is that of all other reasons
    "deadline": "expired",
    "client_closed": "cancelled",
    "run_failed": "failed",
    "not_finite": "failed",
    "out_of_memory": "failed",
    "tokenizer_failed": "failed",
    "internal": "failed",
}
STAGES = ("tokenize", "queue", "forward", "format")

# Measured on 2 cores (benchmarks/results/server-*.json): the median of a single text takes 2.3 ms (sample) to 25 ms
# (BERT-base fp32), p99.9 under load up to 0.23 s; tokenizing 0.07 to 0.3 ms. Under overload, BERT_MAX_WAIT_SECONDS.
LOAD_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
REQUEST_SECONDS = (*LOAD_SECONDS, 1, 2, 5, 10, 20, 30, 60)
STAGE_SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
RUN_SECONDS = (*LOAD_SECONDS, 1, 2, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS = (4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192, 32768, 131072)
REQUEST_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REQUEST_BYTES = (64, 256, 1024, 4096, 16384, 65536, 2**18, 2**20, 2**22, 2**24, 2**26)


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
