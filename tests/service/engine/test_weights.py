"""A weights file that is changed in place under a running service."""

import errno
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.model_export.artifact.manifest import sha256
from packbert.service.artifact import open_artifact
from packbert.service.engine import mapped_file, runner, session
from packbert.service.engine.calibration import golden_tokens
from packbert.service.errors import DeviceError, InferenceFailed

DEADLINE_SECONDS = 60
TEXT = {"inputs": "the cat sat"}


@pytest.fixture
def own_artifact(bert_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))


def service(artifact: Path, **more: str) -> ServiceProcess:
    settings = {"BERT_MODEL": str(artifact), "BERT_TOKEN_BUDGET": "64"}
    return ServiceProcess(settings | more)


@contextmanager
def limited_file_size(most: int) -> Iterator[None]:
    """Writes beyond `most` bytes of a file fail, as on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def overwrite(weights: Path) -> None:
    """In place and without truncating, as `cp` and rsync --inplace do."""
    with weights.open("r+b") as file:
        file.write(np.full(weights.stat().st_size // 4, 0.5, np.float32).tobytes())


@pytest.mark.parametrize("change", ["overwritten", "truncated"])
def test_a_weights_file_changed_in_place_neither_changes_nor_ends_the_service(own_artifact: Path, change: str) -> None:
    with (
        service(own_artifact) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        before = client.post("/embed", json=TEXT).content
        if change == "overwritten":
            overwrite(own_artifact / "cpu" / "model.onnx.data")
        else:
            os.truncate(own_artifact / "cpu" / "model.onnx.data", 0)
        for _ in range(5):
            assert client.post("/embed", json=TEXT).content == before
        assert client.get("/ready").status_code == 200


def test_wrong_answers_from_a_shared_file_are_503_after_the_next_self_check(own_artifact: Path, tmp_path: Path) -> None:
    with (
        service(own_artifact, BERT_WORKERS="2", BERT_CACHE=str(tmp_path / "cache")) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        assert client.post("/embed", json=TEXT).status_code == 200
        (weights,) = (tmp_path / "cache").glob(f"packed/*/{mapped_file.PACKED}/model.onnx.data")
        overwrite(weights)
        end = time.monotonic() + DEADLINE_SECONDS
        while (answer := client.post("/embed", json=TEXT)).status_code == 200:
            assert time.monotonic() < end
        assert (answer.status_code, answer.json()["code"]) == (503, "suspended")
        assert "wrong answers" in answer.json()["error"]
        assert client.get("/ready").status_code == 503


def test_no_mapping_of_the_artifacts_own_files_is_ever_read(
    own_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of them while ONNX Runtime opens a graph neither ends the process nor reaches the graph."""
    artifact, real, opened = open_artifact(own_artifact), session.open_session, list[str]()
    weights = artifact.weights.read_bytes()

    def open_session(graph: Path, *arguments: Any, **options: Any) -> Any:
        artifact.weights.write_bytes(b"")
        opening = real(graph, *arguments, **options)
        assert mapped_file.mappings_of(artifact.weights) == []
        opened.append(graph.name)
        artifact.weights.write_bytes(weights)
        return opening

    monkeypatch.setattr(runner, "open_session", open_session)
    model = runner.ModelRunner(artifact, threads=2)
    for _ in range(2):  # the second time as one that was put out of memory
        model.open()
        model.layers.open()
        model.attention.open()
        rows, _ = model.run_sync([golden_tokens(artifact.manifest, 0)])
        assert rows[0] is not None
        np.testing.assert_allclose(rows[0]["cls"][0], artifact.manifest.canary.cls, atol=1e-3)
        model.close()
    assert opened == ["model.onnx", "layers.onnx", "attention.onnx"] * 2


def test_a_copy_is_removed_after_the_open_and_by_the_next_process_where_one_was_killed(
    own_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    artifact = open_artifact(own_artifact)
    with mapped_file.own_files(artifact) as used:
        kept = Path(shutil.copytree(used, used.with_name(f"{mapped_file.PREFIX}killed")))
        with mapped_file.own_files(artifact) as other:
            assert not kept.exists()
            assert sha256(used / artifact.weights.name) == sha256(other / artifact.weights.name)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_copy_without_room_names_the_way_out(bert_artifact: Path) -> None:
    with limited_file_size(2**16), pytest.raises(DeviceError, match=r"model.onnx.* cannot be copied .*TMPDIR"):
        runner.ModelRunner(open_artifact(bert_artifact), threads=1).open()


def test_a_further_graph_without_memory_for_its_weights_names_the_way_out(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def detach_from(_: Path) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(runner, "detach_from", detach_from)
    artifact = open_artifact(bert_artifact)
    graph = runner.FurtherGraph(artifact=artifact, path=artifact.attention, purpose="/attention", threads=1)
    with pytest.raises(InferenceFailed, match=r"/attention cannot be opened: .*no memory.*TMPDIR"):
        graph.open()


def test_the_weights_that_workers_share_are_written_once_and_mapped(bert_artifact: Path, tmp_path: Path) -> None:
    artifact, parent = open_artifact(bert_artifact), tmp_path / "packed"
    folder = mapped_file.shared_files(artifact, parent)
    written = (folder / mapped_file.PACKED / artifact.weights.name).stat()
    parent.chmod(0o500)  # a cache that is written elsewhere
    assert mapped_file.shared_files(artifact, parent) == folder
    assert (folder / mapped_file.PACKED / artifact.weights.name).stat() == written
    rows = []
    for shared in (None, parent):
        one = runner.ModelRunner(artifact, threads=1, shared=shared)
        copied = one.open()
        assert (copied == 0) == bool(shared)
        assert bool(mapped_file.mappings_of(folder / mapped_file.PACKED / artifact.weights.name)) == bool(shared)
        ((row,), _) = one.run_sync([golden_tokens(artifact.manifest, 0)])
        assert row is not None
        rows.append(np.asarray(row["cls"], np.float64))
        one.close()
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-6)
