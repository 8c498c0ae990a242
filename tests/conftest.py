"""What tests share: checkpoints exported once per session, and one real server process on the golden BERT."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from benchmarks.harness.process import ServiceProcess
from model_export.artifact import cpu
from model_export.export import export
from tests.export.goldens import Artifact
from tests.paths import GOLDEN, SAMPLE

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")  # a busy one is slow, which is no fault


@pytest.fixture(scope="session")
def bert_answers() -> dict[str, Any]:
    """What transformers answered for the golden BERT."""
    content: dict[str, Any] = json.loads((GOLDEN / "bert" / "answers.json").read_text("utf-8"))
    return content


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """The artifact of a golden checkpoint or of the sample, exported once per session: tests do not change it."""
    made: dict[tuple[str, str], Artifact] = {}
    root = tmp_path_factory.mktemp("artifacts")

    def artifact(name: str, precision: str = "fp32") -> Artifact:
        key = (name, precision)
        if key not in made:
            folder, source = root / f"{name}-{precision}", SAMPLE if name == "sample" else GOLDEN / name
            with pytest.MonkeyPatch.context() as patch:
                if precision == cpu.BF16:  # computed right on all processors, only not fast
                    patch.setattr(cpu, "_flags", lambda: {"avx512_bf16"})
                made[key] = Artifact(folder / "cpu", export(source, folder, precision=precision))
        return made[key]

    return artifact


@pytest.fixture(scope="session")
def bert_artifact(exported: Callable[..., Artifact]) -> Path:
    return exported("bert").root


def serve(artifact: Path, **settings: str) -> Iterator[httpx.Client]:
    """A client of a running `python -m service`."""
    with (
        ServiceProcess({"BERT_ARTIFACT": str(artifact), "BERT_MAX_INPUTS": "100"} | settings) as process,
        httpx.Client(base_url=process.url) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def server(bert_artifact: Path) -> Iterator[httpx.Client]:
    yield from serve(bert_artifact)


@pytest.fixture(scope="session")
def classifier(exported: Callable[..., Artifact]) -> Iterator[httpx.Client]:
    yield from serve(exported("bert-labels").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="session")
def tagger(exported: Callable[..., Artifact]) -> Iterator[httpx.Client]:
    yield from serve(exported("bert-tags").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="session")
def cross_encoder(exported: Callable[..., Artifact]) -> Iterator[httpx.Client]:
    """A classifier with one label."""
    yield from serve(exported("distilbert-labels").root, BERT_TOKEN_BUDGET="256")
