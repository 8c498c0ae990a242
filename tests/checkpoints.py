"""The golden checkpoints by name: a folder of tests/golden, or files that are put over the golden checkpoint `base_of`.

Beside the files is answers.json, with what the authors' library gives for texts.
"""

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file

from tests.paths import GOLDEN

BASES = {"sentence-transformers": "bert", "splade": "bert", "zero-shot": "{}-labels"}  # by the folder of the kind


def names_in(kind: str) -> list[str]:
    return sorted(f"{kind}/{file.parent.name}" for file in (GOLDEN / kind).glob("*/answers.json"))


def base_of(name: str) -> str:
    """Empty for a checkpoint that is whole."""
    kind, _, own = name.partition("/")
    if kind == "multi-vectors":
        return str(json.loads((GOLDEN / name / "answers.json").read_text("utf-8"))["base"])
    return BASES.get(kind, "").format(own)


def checkpoint(name: str, folder: Path) -> Path:
    """Writes the checkpoint to `folder`, which must not exist."""
    if base := base_of(name):
        has_old_layout = (GOLDEN / name / "0_Transformer").is_dir()
        shutil.copytree(GOLDEN / base, folder / "0_Transformer" if has_old_layout else folder)
    shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
    if (projection := folder / "projection.safetensors").exists():
        weights = load_file(folder / "model.safetensors") | load_file(projection)
        projection.unlink()
        save_file(weights, folder / "model.safetensors")
    return folder
