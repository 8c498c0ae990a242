"""OpenVINO on a padded graph or on our own one."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from benchmarks.engine.contenders.padding import INPUTS, Ids, Vectors, pad, pooled
from packbert.model_export.artifact.batch import Tokens, pack


class OpenVino:
    """A compiled model; each thread that calls it has a request of its own.

    It is compiled at each start: in bf16, a model from CACHE_DIR corrupted memory (2026.4.1).
    """

    def __init__(self, model: Path, threads: int, streams: int, pooling: str, options: Mapping[str, str]) -> None:
        core = openvino.Core()
        read = core.read_model(model)
        self._ragged = {i.any_name for i in read.inputs} != set(INPUTS)
        if self._ragged:  # all outputs of a compiled model are computed: one is left
            read = openvino.Model([read.output(pooling)], read.get_parameters())
        hint = "LATENCY" if streams == 1 else "THROUGHPUT"
        settings = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        self._compiled = core.compile_model(read, "CPU", settings | dict(options))
        self._names = [i.any_name for i in self._compiled.inputs]
        self._pooling, self._of_thread = pooling, threading.local()

    def __call__(self, texts: Sequence[Ids]) -> Vectors:
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self._compiled.create_infer_request()
        feeds: Mapping[str, Any] = _packed(texts, self._pooling) if self._ragged else pad(texts)
        found = self._of_thread.request.infer({name: feeds[name] for name in self._names})[0]
        return np.array(found) if self._ragged else pooled(found, texts, self._pooling)


def _packed(texts: Sequence[Ids], pooling: str) -> Mapping[str, Any]:
    outputs = frozenset({pooling})
    return pack([Tokens(ids=ids, types=np.zeros_like(ids), outputs=outputs) for ids in texts]).feeds
