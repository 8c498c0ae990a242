"""The contenders: their engines and models, and how the texts are arranged for them.

Needs none of the engines' packages. The name of a contender ends with the precision; `padded` is one batch as the texts
come, `buckets` are sorted batches of padded texts, `ragged` is our own graph without padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.engine.engines import (
    Ids,
    Run,
    Vectors,
    open_ctranslate2,
    open_onnx_runtime,
    open_openvino,
    open_torch,
)
from benchmarks.engine.turns import clock_for

BUCKET_TOKENS = (128, 512)
WARM_UP = np.arange(5, 133, dtype=np.int32)  # a text


@dataclass(frozen=True, slots=True)
class Contender:
    open: Callable[[Path, int, int, Mapping[str, str]], Run]  # model, threads, streams, options
    model: str  # file or folder, of those that `convert` writes
    options: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False  # one padded batch in the order of the texts; else the best of the sorted arrangements


RAGGED = "ragged/cpu/vectors.onnx"
F32, BF16 = {"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_PRECISION_HINT": "bf16"}
# OpenVINO quantizes activations only beside f32, and only in groups that divide the width of the product
DYNAMIC = F32 | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}
CONTENDERS = {
    "ONNX Runtime padded fp32": Contender(open_onnx_runtime, "fused.onnx", plain=True),
    "ONNX Runtime buckets fp32": Contender(open_onnx_runtime, "fused.onnx"),
    "torch padded fp32": Contender(open_torch, "checkpoint", {"dtype": "float32"}, plain=True),
    "CTranslate2 buckets fp32": Contender(open_ctranslate2, "ctranslate2", {"compute_type": "float32"}),
    "OpenVINO ragged fp32": Contender(open_openvino, RAGGED, F32),
    "OpenVINO padded bf16": Contender(open_openvino, "padded.onnx", BF16, plain=True),
    "OpenVINO buckets bf16": Contender(open_openvino, "padded.onnx", BF16),
    "OpenVINO ragged bf16": Contender(open_openvino, RAGGED, BF16),
    "ONNX Runtime padded int8": Contender(open_onnx_runtime, "fused-int8.onnx", plain=True),
    "ONNX Runtime buckets int8": Contender(open_onnx_runtime, "fused-int8.onnx"),
    "CTranslate2 buckets int8": Contender(open_ctranslate2, "ctranslate2", {"compute_type": "int8"}),
    "OpenVINO buckets int8": Contender(open_openvino, "padded-weights-int8/model.xml", DYNAMIC),
    "OpenVINO ragged int8": Contender(open_openvino, "weights-int8/model.xml", DYNAMIC),
    "OpenVINO ragged weights int8": Contender(open_openvino, "weights-int8/model.xml"),
    "OpenVINO static int8": Contender(open_openvino, "static-int8/model.xml"),
}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How texts become batches: one padded batch, or batches of texts sorted by length, which run in streams."""

    streams: int = 1  # batches that run side by side, each with its share of the threads
    bucket_tokens: int | None = None  # of a batch of sorted texts, padding included; None: one batch, as the texts come

    def __str__(self) -> str:
        if self.bucket_tokens is None:
            return "one batch"
        return f"sorted, batches of {self.bucket_tokens} tokens, {self.streams} at a time"

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """The places of the texts by batch; the longest texts come first, so that streams end together."""
        if self.bucket_tokens is None:
            return [list(range(len(lengths)))]
        groups: list[list[int]] = []
        for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
            if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= self.bucket_tokens:
                groups[-1].append(place)
            else:
                groups.append([place])
        return groups


class Arranged:
    """An engine whose texts are arranged; `runs` has a Run for each number of streams."""

    def __init__(self, runs: Mapping[int, Run], threads: int, *, plain: bool) -> None:
        self._runs, self._threads, self._plain = runs, threads, plain
        self._pools = {streams: ThreadPoolExecutor(streams) for streams in runs}
        self._clock = clock_for(threads)

    def choices(self, texts: Sequence[Ids]) -> dict[str, Arrangement]:
        """The arrangements to try: those that give new batches, in streams too if there are several batches."""
        found = [Arrangement()] if self._plain else list(candidates(list(map(len, texts)), self._threads))
        return {str(arrangement): arrangement for arrangement in found}

    def seconds(self, texts: Sequence[Ids], arrangement: Arrangement) -> float:
        """Of one turn over all texts, sorting and padding included."""
        started = self._clock()
        self.vectors(texts, arrangement)
        return self._clock() - started

    def vectors(self, texts: Sequence[Ids], arrangement: Arrangement) -> Vectors:
        """A vector for each text, in the order of `texts`."""
        run, groups = self._runs[arrangement.streams], arrangement.groups(list(map(len, texts)))
        batches = [[texts[place] for place in group] for group in groups]
        results = self._pools[arrangement.streams].map(run, batches) if len(batches) > 1 else map(run, batches)
        rows = np.concatenate(list(results))
        ordered = np.empty_like(rows)
        ordered[np.concatenate([np.array(group) for group in groups])] = rows
        return ordered


def candidates(lengths: Sequence[int], threads: int) -> Iterator[Arrangement]:
    seen: list[list[list[int]]] = []
    for bucket_tokens in BUCKET_TOKENS:
        groups = Arrangement(1, bucket_tokens).groups(lengths)
        if groups in seen:
            continue
        seen.append(groups)
        yield Arrangement(1, bucket_tokens)
        if len(groups) > 1 and threads > 1:
            yield Arrangement(threads, bucket_tokens)


def open_contender(name: str, folder: Path, threads: int) -> Arranged:
    """The contender with the models in `folder`, open and warm for all arrangements that it may take."""
    contender = CONTENDERS[name]

    def open_engine(streams: int) -> Run:
        run = contender.open(folder / contender.model, threads, streams, contender.options)
        run([WARM_UP])
        return run

    runs = {streams: open_engine(streams) for streams in {1, 1 if contender.plain else threads}}
    return Arranged(runs, threads, plain=contender.plain)
