"""The telemetry of ONNX Runtime and OpenVINO is off in the exporter and in the service."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packbert.model_export.artifact.manifest import LAYERS
from packbert.model_export.artifact.openvino import OpenVinoEncoder


@pytest.mark.parametrize(
    "module",
    ["packbert.model_export.verification.verify", "packbert.model_export.export", "packbert.service.engine.session"],
)
def test_onnx_runtime_writes_no_telemetry_files(module: str, tmp_path: Path) -> None:
    silencing = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in silencing} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)
    assert [path.name for path in tmp_path.rglob("*onnxruntime*")] == []


def test_openvino_writes_no_file(exported: Callable, tmp_path: Path) -> None:
    """Its import would write an id to ~/intel, and it has a cache of compiled models, which is off."""
    layers = exported("bert", "bf16").folder / LAYERS
    module = OpenVinoEncoder.__module__
    code = f"from {module} import *; OpenVinoEncoder(Path({str(layers)!r}), all_layers=False, threads=1)"
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    before = sorted(layers.parent.iterdir())
    subprocess.run([sys.executable, "-c", code], check=True, env=environment | {"HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
    assert sorted(layers.parent.iterdir()) == before
