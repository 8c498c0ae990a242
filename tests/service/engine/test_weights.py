"""A weights file that is changed in place under a running service."""

import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.artifact import open_artifact
from packbert.service.engine import mapped_file, runner
from packbert.service.errors import InferenceFailed

DEADLINE_SECONDS = 60
MEETING_SECONDS = 0.3
TEXT = {"inputs": "the cat sat"}


@pytest.fixture
def own_artifact(bert_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))


def service(artifact: Path, **more: str) -> ServiceProcess:
    settings = {"BERT_ARTIFACT": str(artifact), "BERT_TOKEN_BUDGET": "64"}
    return ServiceProcess(settings | more)


def overwrite(artifact: Path) -> None:
    """In place and without truncating, as `cp` and rsync --inplace do."""
    weights = artifact / "cpu" / "model.onnx.data"
    with weights.open("r+b") as file:
        file.write(np.full(weights.stat().st_size // 4, 0.5, np.float32).tobytes())


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("change", ["overwritten", "truncated"])
def test_a_weights_file_changed_in_place_neither_changes_nor_ends_the_service(
    own_artifact: Path, change: str, processes: str
) -> None:
    with (
        service(own_artifact, BERT_API_PROCESSES=processes) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        before = client.post("/embed", json=TEXT).content
        if change == "overwritten":
            overwrite(own_artifact)
        else:
            os.truncate(own_artifact / "cpu" / "model.onnx.data", 0)
        for _ in range(5):
            assert client.post("/embed", json=TEXT).content == before
        assert client.get("/ready").status_code == 200


@pytest.mark.parametrize("processes", ["0", "1"])
def test_wrong_answers_from_a_shared_file_are_503_after_the_next_self_check(own_artifact: Path, processes: str) -> None:
    with (
        service(own_artifact, BERT_API_PROCESSES=processes, BERT_SHARE_WEIGHTS="true") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        assert client.post("/embed", json=TEXT).status_code == 200
        overwrite(own_artifact)
        end = time.monotonic() + DEADLINE_SECONDS
        while (answer := client.post("/embed", json=TEXT)).status_code == 200:
            assert time.monotonic() < end
        assert (answer.status_code, answer.json()["code"]) == (503, "suspended")
        assert "wrong answers" in answer.json()["error"]
        assert client.get("/ready").status_code == 503


def test_no_graph_opens_while_another_thread_replaces_mappings_of_its_file(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the file that a thread unmaps between the reading of the mappings and their replacement would be other
    memory by then."""
    artifact, steps, together = open_artifact(bert_artifact), list[str](), threading.Barrier(2)

    def open_session(*_: object, **__: object) -> None:
        steps.append("open")
        with suppress(threading.BrokenBarrierError):
            together.wait(MEETING_SECONDS)  # the other thread, if it can be here too

    monkeypatch.setattr(runner, "open_session", open_session)
    monkeypatch.setattr(mapped_file, "detach_from", lambda _: steps.append("detach"))
    graphs = [runner.FurtherGraph(artifact=artifact, path=artifact.model, purpose="", threads=1) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(runner.FurtherGraph.open, graphs))
    assert steps == ["open", "detach"] * 2


def test_a_further_graph_without_memory_for_its_weights_names_the_way_out(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def detach_from(_: Path) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(mapped_file, "detach_from", detach_from)
    artifact = open_artifact(bert_artifact)
    graph = runner.FurtherGraph(artifact=artifact, path=artifact.attention, purpose="/attention", threads=1)
    with pytest.raises(InferenceFailed, match=r"/attention cannot be opened: .*no memory.*BERT_SHARE_WEIGHTS=true"):
        graph.open()
