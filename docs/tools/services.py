"""Running services of the models that the pages name, for what writes the pages."""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from benchmarks.harness.process import ServiceProcess
from docs.tools.answers import BUNDLED
from packbert.model_export.export import export
from tests.paths import GOLDEN, ROOT, SAMPLE

EXAMPLES = ROOT / "examples"
REVIEWS = "reviews"  # the classifier of the page `start`


class Services:
    """Starts a service for each model at its first request; `with` ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()
        self._clients: dict[str, httpx.Client] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def artifact(self, model: str) -> Path:
        made = self._folder / model.replace("/", "-")
        if not made.exists():
            export(self._checkpoint(model), made)
        return made

    def client(self, model: str) -> httpx.Client:
        if model not in self._clients:
            process = self._stack.enter_context(ServiceProcess({"BERT_MODEL": str(self.artifact(model))}))
            self._clients[model] = self._stack.enter_context(httpx.Client(base_url=process.url, timeout=60))
        return self._clients[model]

    def _checkpoint(self, model: str) -> Path:
        if model == BUNDLED:
            return SAMPLE
        return train_reviews(self.artifact(BUNDLED), self._folder) if model == REVIEWS else golden(model, self._folder)


def golden(model: str, folder: Path) -> Path:
    """The golden checkpoint of this name; A+B is that of A with the files of B put over it."""
    first, *others = model.split("+")
    if not others:
        return GOLDEN / first
    made = folder / f"{model.replace('/', '-')}-checkpoint"
    for one in (first, *others):
        shutil.copytree(GOLDEN / one, made, dirs_exist_ok=True)
    return made


def train_reviews(bundled: Path, folder: Path) -> Path:
    """The checkpoint that examples/train_classifier.py makes of the bundled model's artifact."""
    made = folder / "reviews-checkpoint"
    script, texts = EXAMPLES / "train_classifier.py", EXAMPLES / "data" / "reviews.tsv"
    subprocess.run([sys.executable, str(script), str(bundled), str(texts), str(made)], check=True, cwd=ROOT)
    return made
