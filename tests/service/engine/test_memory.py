"""Weights that are mapped, copied or moved to huge pages: what changes on the disk do to a running service."""

import mmap
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

import numpy as np
import pytest

from packbert.model_export.artifact.manifest import sha256
from packbert.service.artifact import open_artifact
from packbert.service.engine import memory, runner, session
from packbert.service.engine.calibration import golden_tokens
from packbert.service.engine.memory import HUGE_PAGE, LEAST_BYTES, detach_from, mappings_of, use_huge_pages
from packbert.service.errors import DeviceError
from tests.serving import running

PAGE = mmap.PAGESIZE
ANONYMOUS = "7f0000001000-7f0002001000 rw-p 00000000 00:00 0 \nSize:              32768 kB\nRss:               {} kB\n"
FILE = "7f1000000000-7f1002000000 rw-p 00000000 08:01 77 /models/model.onnx.data\nSize: 1 kB\nRss: 32768 kB\n"
HEAP = (
    "560000000000-560002000000 rw-p 00000000 00:00 0                          [heap]\nSize: 32768 kB\nRss: 32768 kB\n"
)
STACK = "7f2000000000-7f2000800000 rw-p 00000000 00:00 0 \nSize:               8192 kB\nRss:                8192 kB\n"
READ_ONLY = (
    "7f3000000000-7f3002000000 r--p 00000000 00:00 0 \nSize:              32768 kB\nRss:               32768 kB\n"
)


def mapped(file: Path, offset: int = 0, size: int = 0, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), size, access=access, offset=offset)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten pages and a half, each with its own number in all bytes."""
    one = tmp_path / "a file (deleted) with spaces"
    one.write_bytes(b"".join(bytes([page]) * PAGE for page in range(1, 12))[: -PAGE // 2])
    return one


@pytest.mark.parametrize("change", ["overwritten", "truncated", "removed"])
def test_a_detached_mapping_keeps_its_bytes_whatever_happens_to_the_file(file: Path, change: str) -> None:
    before = file.read_bytes()
    with mapped(file) as whole, mapped(file, 4 * PAGE, 2 * PAGE) as part:
        assert len(mappings_of(file)) == 2
        assert detach_from(file) == 11 * PAGE  # once for both
        assert mappings_of(file) == []
        assert detach_from(file) == 0
        if change == "overwritten":
            file.write_bytes(bytes(len(before)))
        elif change == "truncated":
            os.truncate(file, 0)
        else:
            file.unlink()
        assert whole[:] == before
        assert part[:] == before[4 * PAGE : 6 * PAGE]


def test_a_file_replaced_by_name_leaves_the_mapped_bytes(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    with mapped(file) as one:
        (tmp_path / "new").write_bytes(bytes(len(before)))
        (tmp_path / "new").replace(file)
        detach_from(file)
        assert one[:] == before


def test_a_file_truncated_before_is_an_error_and_ends_no_process(file: Path) -> None:
    with mapped(file) as one:
        os.truncate(file, 0)
        with pytest.raises(OSError, match="Bad address"):
            detach_from(file)
        assert len(one) > 0


def test_a_writable_private_mapping_stays_writable_and_the_file_unchanged(file: Path) -> None:
    before = file.read_bytes()
    with mapped(file, access=mmap.ACCESS_COPY) as one:
        detach_from(file)
        one[0] = 99
        assert one[0] == 99
    assert file.read_bytes() == before


DEADLINE_SECONDS = 60
TEXT = {"inputs": "the cat sat"}


@pytest.fixture
def own_artifact(bert_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))


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


def test_wrong_answers_from_a_shared_file_are_503_after_a_check(own_artifact: Path, tmp_path: Path) -> None:
    settings = {"BERT_MODEL": str(own_artifact), "BERT_TOKEN_BUDGET": "64", "BERT_WORKERS": "2"}
    with running(settings | {"BERT_CACHE": str(tmp_path / "cache")}) as (_, client):
        assert client.post("/embed", json=TEXT).status_code == 200
        (weights,) = (tmp_path / "cache").glob(f"packed/*/{memory.PACKED}/model.onnx.data")
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
        assert memory.mappings_of(artifact.weights) == []
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


def test_a_copy_is_removed_after_the_open_or_by_the_next_process(
    own_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    artifact = open_artifact(own_artifact)
    with memory.own_files(artifact) as used:
        kept = Path(shutil.copytree(used, used.with_name(f"{memory.PREFIX}killed")))
        with memory.own_files(artifact) as other:
            assert not kept.exists()
            assert sha256(used / artifact.weights.name) == sha256(other / artifact.weights.name)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_copy_without_room_names_the_way_out(bert_artifact: Path) -> None:
    with limited_file_size(2**16), pytest.raises(DeviceError, match=r"model.onnx.* cannot be copied .*TMPDIR"):
        runner.ModelRunner(open_artifact(bert_artifact), threads=1).open()


def test_the_weights_that_workers_share_are_written_once_and_mapped(bert_artifact: Path, tmp_path: Path) -> None:
    artifact, parent = open_artifact(bert_artifact), tmp_path / "packed"
    folder = memory.shared_files(artifact, parent)
    written = (folder / memory.PACKED / artifact.weights.name).stat()
    parent.chmod(0o500)  # a cache that is written elsewhere
    assert memory.shared_files(artifact, parent) == folder
    assert (folder / memory.PACKED / artifact.weights.name).stat() == written
    rows = []
    for shared in (None, parent):
        one = runner.ModelRunner(artifact, threads=1, shared=shared)
        copied = one.open()
        assert (copied == 0) == bool(shared)
        assert bool(memory.mappings_of(folder / memory.PACKED / artifact.weights.name)) == bool(shared)
        ((row,), _) = one.run_sync([golden_tokens(artifact.manifest, 0)])
        assert row is not None
        rows.append(np.asarray(row["cls"], np.float64))
        one.close()
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-6)


def test_only_large_anonymous_mappings_that_are_filled_are_moved() -> None:
    smaps = FILE + ANONYMOUS.format(32000) + STACK + HEAP + READ_ONLY
    found = list(memory._filled_mappings(smaps))
    assert found == [(0x7F0000200000, 2**25 - HUGE_PAGE), (0x560000000000, 2**25)]
    assert list(memory._filled_mappings(ANONYMOUS.format(16000))) == []  # the rest would be filled with zeros


def test_what_is_moved_stays_as_it_is() -> None:
    pages = mmap.mmap(-1, 2 * LEAST_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = np.frombuffer(pages, np.uint32)
    content[:] = np.arange(len(content), dtype=np.uint32)
    moved = use_huge_pages()
    assert moved == 0 or moved >= LEAST_BYTES
    assert np.array_equal(content, np.arange(len(content), dtype=np.uint32))


def test_a_system_that_forbids_them_is_obeyed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(memory, "THP", tmp_path / "enabled")
    monkeypatch.setattr(memory, "SMAPS", tmp_path / "must not be read")
    assert use_huge_pages() == 0
    monkeypatch.setattr(memory, "THP", tmp_path / "not there")
    assert use_huge_pages() == 0
