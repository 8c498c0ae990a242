"""An artifact with one poisoned token: its embedding is not a number, so that any text that holds it has no finite answer."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir

from model_export.manifest import MANIFEST, MODEL, sha256

WEIGHTS = "model.onnx.data"


def poison_token(artifact: Path, folder: Path, *, token: int) -> Path:
    """A copy of `artifact` in `folder` whose float32 word embedding of `token` is NaN; its manifest says that this is how it should be."""
    shutil.copytree(artifact, folder)
    files = folder / "cpu"
    (word,) = (v for name, v in ir.load(files / MODEL).graph.initializers.items() if name.rpartition("/")[2] == "word")
    table = word.const_value
    assert isinstance(table, ir.ExternalTensor)
    row_bytes = int(table.shape[1]) * 4
    with (files / WEIGHTS).open("r+b") as file:
        file.seek((table.offset or 0) + token * row_bytes)
        file.write(np.full(row_bytes // 4, np.nan, np.float32).tobytes())
    manifest = json.loads((files / MANIFEST).read_text("utf-8"))
    assert token not in manifest["golden"][0]["ids"]
    manifest["files"][WEIGHTS] = sha256(files / WEIGHTS)
    (files / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    return folder
