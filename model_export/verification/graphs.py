"""Runs the graphs of a written artifact as the service runs them: in ONNX Runtime, or in bf16 also in OpenVINO."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model_export.artifact.cpu import BF16, multiply_exactly
from model_export.artifact.manifest import HEADS, LAYERS, PACKED_ROWS
from model_export.verification.cuda_on_cpu import write_portable

Arrays = Mapping[str, NDArray[np.generic]]


class Graph(Protocol):
    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """The outputs `names`; `feeds` may hold more than the graph reads."""


class OrtGraph:
    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay mapped instead of copied
        # a small model waits more than it runs
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        multiply_exactly(options)  # without effect on other precisions
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        results: list[NDArray[np.generic]]
        results = self._session.run(names, {name: array for name, array in feeds.items() if name in self._inputs})
        return results


class Bf16Graph:
    """The hidden states by OpenVINO, the rest by the heads' own graph."""

    def __init__(self, path: Path) -> None:
        from model_export.artifact.openvino_encoder import OpenVinoEncoder  # other precisions do without OpenVINO

        self._encoder = OpenVinoEncoder(path.with_name(LAYERS), all_layers=path.name == LAYERS, threads=0)
        self._heads = OrtGraph(path.with_name(HEADS))

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        return self._encoder.run_with_heads(self._heads, names, feeds)


def open_graph(path: Path, layout: str, precision: str) -> Graph:
    """Runs on the CPU whatever the device: CUDA's attention is replaced by its definition in plain operators."""
    if precision == BF16:
        return Bf16Graph(path)
    runnable = path if layout == PACKED_ROWS else write_portable(path)
    graph = OrtGraph(runnable)
    if runnable != path:
        runnable.unlink()
    return graph
