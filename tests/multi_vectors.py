"""The golden ColBERT and BGE-M3 checkpoints: their files over another golden checkpoint, and their authors' answers."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests.paths import GOLDEN

FOLDER = GOLDEN / "multi-vectors"
NAMES = sorted(folder.name for folder in FOLDER.iterdir())


def checkpoint(name: str, folder: Path) -> Path:
    """Writes the checkpoint to `folder`, which must not exist."""
    shutil.copytree(GOLDEN / answers(name)["base"], folder)
    shutil.copytree(FOLDER / name, folder, dirs_exist_ok=True)
    if (projection := folder / "projection.safetensors").exists():
        weights = load_file(folder / "model.safetensors") | load_file(projection)
        projection.unlink()
        save_file(weights, folder / "model.safetensors")
    return folder


def answers(name: str) -> dict[str, Any]:
    """`base`, `queries` and `documents` with text and vectors, `scores`; of BGE-M3 `sparse` with text and weights."""
    content: dict[str, Any] = json.loads((FOLDER / name / "answers.json").read_text("utf-8"))
    return content
