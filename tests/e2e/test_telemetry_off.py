"""ONNX Runtime's telemetry, which is on by default, is off in the exporter and in the service."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "module", ["model_export.verification.verify", "model_export.output.prepacked", "service.engine.session"]
)
def test_onnx_runtime_writes_no_telemetry_files(module: str, tmp_path: Path) -> None:
    silencing = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in silencing} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)
    assert [path.name for path in tmp_path.rglob("*onnxruntime*")] == []
