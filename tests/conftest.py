"""What tests share: the golden BERT exported once, and one real server process on it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from benchmarks.harness.process import ServiceProcess
from model_export.export import export
from tests.paths import GOLDEN

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
def bert_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts") / "bert"
    export(GOLDEN / "bert", folder, precision="fp32")
    return folder


@pytest.fixture(scope="session")
def server(bert_artifact: Path) -> Iterator[httpx.Client]:
    """A client of a running `python -m service`."""
    with (
        ServiceProcess({"BERT_ARTIFACT": str(bert_artifact), "BERT_MAX_INPUTS": "100"}) as process,
        httpx.Client(base_url=process.url) as client,
    ):
        yield client
