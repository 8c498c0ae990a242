"""Writes a model once more with its weights also packed as this machine's kernels read them.

ONNX Runtime packs the weights of products whenever a session is opened, into memory of that session. Packed weights that it finds beside
the model are mapped instead, so that all sessions and processes share them. It compares what it finds with what it would have packed:
on another processor, or in another version, it keeps its own, and the artifact works as any other.
"""

from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from model_export.artifact.cpu import cpu_signature
from model_export.errors import ExportError
from model_export.graph.builder import WEIGHTS_FILE


def prepacked_for() -> str:
    """The processor and the version that weights packed here are for."""
    return cpu_signature(ort.__version__)


def prepack(model: Path) -> None:
    """Replaces `model` and its weights; the file of the weights becomes about twice as large. Raises ExportError where there is no room for it."""
    folder = model.with_name("prepacked")
    folder.mkdir()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # as in the service
    options.optimized_model_filepath = str(folder / model.name)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Fail as error:
        raise ExportError(
            f"{folder} could not be written: packed weights take three times the room while they are made; make room, or leave out --prepacked"
        ) from error
    for name in (WEIGHTS_FILE, model.name):
        (folder / name).replace(model.with_name(name))
    folder.rmdir()
