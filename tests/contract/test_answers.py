"""Every answer is the recorded one; `python -m tests.contract.record` records them anew."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from packbert.model_export.export import export
from tests.contract.record import FILE, compare, read
from tests.contract.running import ask_application, ask_process, checkpoint
from tests.contract.services import SERVICES, Service
from tests.export.goldens import Artifact
from tests.paths import ROOT

NAMES = [f"{service.name}: {request.name}" for service in SERVICES for request in service.requests]
MAX_FILE_BYTES = 600_000


def _artifact(service: Service, exported: Callable[..., Artifact], folder: Path) -> Path:
    """Of one checkpoint that of the whole session."""
    if len(service.folders) < 2:
        return exported(*service.folders or ("sample",)).root
    artifact = folder / "artifact"
    export(checkpoint(service, folder), artifact, precision="fp32")
    return artifact


@pytest.mark.parametrize("service", SERVICES, ids=[service.name for service in SERVICES])
def test_the_answers_are_those_recorded(service: Service, exported: Callable[..., Artifact], tmp_path: Path) -> None:
    artifact = _artifact(service, exported, tmp_path)
    if service.is_process:
        answers = ask_process(service, artifact, tmp_path, ROOT)
    else:
        answers = asyncio.run(ask_application(service, artifact))
    found = compare(answers, read())
    assert not found, "\n".join([f"{len(found)} differences", *found])


def test_each_request_has_an_own_name_and_each_answer_a_request() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert sorted(set(read()).difference(NAMES)) == []


def test_the_file_is_small() -> None:
    assert FILE.stat().st_size < MAX_FILE_BYTES
