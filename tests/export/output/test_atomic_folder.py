"""An artifact's folder is written completely or not at all."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packbert.model_export.artifact.manifest import MANIFEST
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.folder import atomic_folder
from tests.paths import GOLDEN, SAMPLE

LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv.pop(1)),)); "
RUN = LIMITED + "from packbert.model_export.__main__ import main; sys.exit(main(sys.argv[1:]))"


def test_the_remains_of_a_killed_export_are_overwritten(tmp_path: Path) -> None:
    left = tmp_path / "artifact" / "cpu.partial"
    (left / "prepacked").mkdir(parents=True)
    (left / "model.onnx").write_text("half", "utf-8")
    export(GOLDEN / "bert", tmp_path / "artifact")
    assert [entry.name for entry in (tmp_path / "artifact").iterdir()] == ["cpu"]
    assert not (tmp_path / "artifact" / "cpu" / "prepacked").exists()


def test_of_two_exports_to_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "artifact" / "cpu") as folder:
        (folder / MANIFEST).write_text("first", "utf-8")
        with pytest.raises(ExportError, match="another export is writing"):
            export(GOLDEN / "bert", tmp_path / "artifact")
    assert (tmp_path / "artifact" / "cpu" / MANIFEST).read_text("utf-8") == "first"


def test_an_export_beside_another_is_refused_before_it_computes(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact" / "cpu"
    with atomic_folder(artifact) as folder:
        (folder / MANIFEST).write_text("first", "utf-8")
    with pytest.raises(ExportError, match="which another export has written meanwhile"), atomic_folder(artifact):
        raise AssertionError("the block ran")
    assert [entry.name for entry in (tmp_path / "artifact").iterdir()] == ["cpu"]


def test_the_lock_is_that_of_the_folder_which_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another export removes its folder between the two steps of the lock."""
    artifact, lock = tmp_path / "artifact" / "cpu", fcntl.flock
    steps: list[int] = []

    def flock(handle: int, how: int) -> None:
        if not steps:
            artifact.with_name("cpu.partial").rmdir()
        steps.append(how)
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_folder(artifact) as folder:
        with pytest.raises(ExportError, match="another export is writing"), atomic_folder(artifact):
            raise AssertionError("the block ran")
        (folder / MANIFEST).write_text("ours", "utf-8")
    assert (artifact / MANIFEST).read_text("utf-8") == "ours"
    assert len(steps) == 3


def test_an_artifact_written_meanwhile_is_not_changed(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact" / "cpu"

    def write_meanwhile() -> None:
        with atomic_folder(artifact):
            artifact.mkdir()
            (artifact / MANIFEST).write_text("theirs", "utf-8")

    with pytest.raises(ExportError, match="cannot be written"):
        write_meanwhile()
    assert (artifact / MANIFEST).read_text("utf-8") == "theirs"
    assert [entry.name for entry in artifact.parent.iterdir()] == ["cpu"]


@pytest.mark.parametrize(
    ("room", "options", "sentence"),
    [(20_000, [], "cpu cannot be written"), (200_000, ["--prepacked"], "cpu.partial/prepacked could not be written")],
)
def test_a_full_disk_is_reported_and_no_files_are_left(
    room: int, options: list[str], sentence: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", RUN, str(room), str(GOLDEN / "bert"), str(tmp_path / "artifact"), *options]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.startswith("packbert export: ")
    assert sentence in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "artifact").exists()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ExportError, match=r"cpu cannot be written: Not a directory"):
        export(GOLDEN / "bert", tmp_path / "file" / "artifact")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_cleans_up_and_reports_it(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packbert", "export", str(SAMPLE), str(tmp_path / "artifact")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (tmp_path / "artifact").exists():
            pass
        process.send_signal(how)
        assert process.stderr
        assert process.stderr.read().endswith("packbert export: interrupted, nothing was written\n")
    assert process.returncode == 130
    assert not list(tmp_path.rglob("model.onnx"))
