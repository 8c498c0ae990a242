"""ONNX Runtime on a padded graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.engine.contenders.padding import Ids, Vectors, pad, pooled


class OnnxRuntime:
    """A session whose threads are divided among its streams."""

    def __init__(self, model: Path, threads: int, streams: int, pooling: str, options: Mapping[str, str]) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = threads // streams
        settings.log_severity_level = 3
        for name, value in options.items():
            settings.add_session_config_entry(name, value)
        self._session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        self._pooling = pooling
        self._types = {i.name: np.int32 if "int32" in i.type else np.int64 for i in self._session.get_inputs()}

    def __call__(self, texts: Sequence[Ids]) -> Vectors:
        batch = pad(texts)
        feeds = {name: batch[name].astype(kind, copy=False) for name, kind in self._types.items()}
        return pooled(self._session.run(None, feeds)[0], texts, self._pooling)
