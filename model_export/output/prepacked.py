"""Stores a model's weights a second time, packed for the kernels of this machine.

ONNX Runtime packs the weights of products whenever a session is opened, into memory of that session. Packed weights
that are stored with the model are mapped instead, so that all sessions and processes share them. ONNX Runtime compares
them with what it would have packed: on another processor, or in another version, it uses its own.
"""

from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from model_export.artifact.cpu import cpu_signature
from model_export.artifact.manifest import WEIGHTS
from model_export.errors import ExportError


def prepacked_for() -> str:
    """The signature of this CPU and version, which the packed weights are for."""
    return cpu_signature(ort.__version__)


def prepack(model: Path) -> None:
    """Replaces `model` and its weights, whose file becomes about twice as large. Raises ExportError on a full disk."""
    folder = model.with_name("prepacked")
    folder.mkdir()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # as in the service
    options.optimized_model_filepath = str(folder / model.name)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Fail as error:
        reason = "packing weights needs three times their size on the disk; make room, or omit --prepacked"
        raise ExportError(f"{folder} could not be written: {reason}") from error
    for name in (WEIGHTS, model.name):
        (folder / name).replace(model.with_name(name))
    folder.rmdir()
