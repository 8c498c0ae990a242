"""The golden sentence-transformers checkpoints: their modules over the golden BERT, and the answers of `encode`."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.paths import GOLDEN

FOLDER = GOLDEN / "sentence-transformers"
NAMES = sorted(folder.name for folder in FOLDER.iterdir())


def checkpoint(name: str, folder: Path) -> Path:
    """Writes the checkpoint to `folder`, which must not exist."""
    transformer = folder / "0_Transformer" if (FOLDER / name / "0_Transformer").is_dir() else folder
    shutil.copytree(GOLDEN / "bert", transformer)
    shutil.copytree(FOLDER / name, folder, dirs_exist_ok=True)
    return folder


def answers(name: str) -> dict[str, Any]:
    """`texts`, `similarity`, and `calls`: the `arguments` of encode, and the `vectors` [texts, width] of each call."""
    content: dict[str, Any] = json.loads((FOLDER / name / "answers.json").read_text("utf-8"))
    return content
