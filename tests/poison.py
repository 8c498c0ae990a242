"""Makes an artifact with one poisoned word: its embedding is NaN, and so are its answers."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx

from packbert.model_export.artifact.manifest import MODEL, TOKENIZER, WEIGHTS, Manifest
from tests.service.engine.changed_files import with_own_digests


def poison_word(artifact: Path, folder: Path) -> tuple[str, int]:
    """Copies `artifact` to `folder`, sets one word's float32 embedding to NaN, and updates the digest in the manifest.

    Returns the word and its id. The self-test at the start of the service does not use this word.
    """
    shutil.copytree(artifact, folder)
    cpu = folder / "cpu"
    used = {token for golden in Manifest.read(cpu).golden for token in golden.ids}
    words = json.loads((cpu / TOKENIZER).read_text("utf-8"))["model"]["vocab"]
    word, token = next(
        (word, token)
        for word, token in reversed(words.items())
        if word.isalpha() and word.isascii() and len(word) > 2 and token not in used
    )
    overwrite(cpu, token)
    with_own_digests(cpu)
    return word, token


def overwrite(cpu: Path, token: int) -> None:
    """Makes the embedding of `token` NaN in the artifact folder `cpu`."""
    weights = onnx.load(cpu / MODEL, load_external_data=False).graph.initializer
    (table,) = (one for one in weights if one.name.rpartition("/")[2] == "word")
    (offset,) = (int(entry.value) for entry in table.external_data if entry.key == "offset")
    numbers = table.dims[1]
    with (cpu / WEIGHTS).open("r+b") as file:
        file.seek(offset + token * numbers * 4)
        file.write(np.full(numbers, np.nan, np.float32).tobytes())
