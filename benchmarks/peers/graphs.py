"""`python -m benchmarks.peers.graphs CHECKPOINT FOLDER`: the ONNX graph of a checkpoint, as exported and fused.

Runs in the environment of infinity.txt.
"""

import json
import sys
from pathlib import Path

from benchmarks.engine.convert import export_padded, write_fused


def write_graphs(checkpoint: Path, folder: Path) -> None:
    export_padded(checkpoint, folder / "model.onnx")
    config = json.loads((checkpoint / "config.json").read_text())
    write_fused(folder / "model.onnx", folder / "fused.graph", config)  # infinity would load it as .onnx


if __name__ == "__main__":
    write_graphs(*map(Path, sys.argv[1:]))
