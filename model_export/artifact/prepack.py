"""Stores the weights of a graph also packed for this processor, so that a session maps them and copies none."""

from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from .manifest import WEIGHTS


def prepack(model: Path, folder: Path) -> None:
    """Writes `model` and its weights to the new `folder`, in which the weights take about twice the room.

    Raises OSError on a full disk.
    """
    folder.mkdir()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # as in the service
    options.optimized_model_filepath = str(folder / model.name)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Fail as error:
        raise OSError(str(error)) from error
