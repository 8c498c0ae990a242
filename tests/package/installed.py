"""What holds for the package wherever it is installed: checked in child processes beside packages of a user's own."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOREIGN = "raise ImportError('a package of the user, which the service has no business with')\n"
LIBRARY = """
import asyncio, json, sys
from packbert import Engine

async def story():
    async with Engine.from_model(sys.argv[1]) as engine:
        vectors = (await engine.embed(["my dog is hairy", "it rains"])).tolist()
    own = [name for name in sys.modules if name.split(".")[0] in ("service", "model_export")]
    print(json.dumps({"vectors": vectors, "modules": own}))

asyncio.run(story())
"""


def make_foreign_packages(folder: Path) -> Path:
    """A folder with packages `service` and `model_export` that cannot be imported."""
    for name in ("service", "model_export"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(FOREIGN, "utf-8")
    return folder


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> str:
    """What the command prints, in `folder`, which Python searches for modules first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BERT_", "PYTHON"))}
    return subprocess.run(
        command, cwd=folder, env=clean | dict(environment), check=True, capture_output=True, text=True
    ).stdout


def as_vectors(numbers: Any) -> NDArray[np.float32]:
    """Of JSON, where the digits of a float32 depend on who wrote them."""
    return np.asarray(numbers, np.float32)


def embed_by_library(
    python: str | Path, artifact: Path, folder: Path, environment: Mapping[str, str]
) -> NDArray[np.float32]:
    """The vectors of two texts, by the library that `python` finds; it imports no package of the user."""
    found = json.loads(run([python, "-c", LIBRARY, artifact], folder, environment))
    assert found["modules"] == []
    return as_vectors(found["vectors"])
