"""Jobs that are killed for real: the same job continues, with every row once; another job is refused, and said why."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from packbert import Engine
from packbert.service.library import job as bulk
from packbert.service.library.bulk_command import main
from packbert.service.library.client import Client
from packbert.service.library.files import FileError
from packbert.service.library.job import NOTE, Job, run_job
from packbert.service.settings import variables_with
from tests.conftest import Serve

ROWS = 13_000  # four parts, of which the first is written long before the last
REFUSED = [7, 5000, 12_999]  # of the first part, the second and the last
TEXTS = ["" if row in REFUSED else f"dog {row % 977}" for row in range(ROWS)]


class Killed(NamedTuple):
    folder: Path  # with in.txt and the parts of a job under BERT_POOLING=cls and --skip-errors, killed by SIGKILL
    refusal: str  # of the same command while the job was under way


@pytest.fixture(scope="module")
def killed(bert_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "in.txt").write_text("\n".join(TEXTS) + "\n", "utf-8")
    command = [sys.executable, "-m", "packbert", "bulk", str(folder / "in.txt"), str(folder / "out.npy")]
    variables = variables_with(BERT_MODEL=str(bert_artifact), BERT_POOLING="cls")
    process = subprocess.Popen([*command, "--skip-errors"], env=variables, stderr=subprocess.PIPE)
    while not list((folder / "out.npy.parts").glob("0*")) and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.send_signal(signal.SIGSTOP)  # it neither ends nor goes on
    second = subprocess.run([*command, "--skip-errors"], env=variables, capture_output=True, text=True, check=False)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (process.returncode, second.returncode) == (-signal.SIGKILL, 2)
    assert not (folder / "out.npy").exists()
    return Killed(folder, second.stderr)


@pytest.fixture
def job_folder(killed: Killed, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the kill left it, before and after."""
    monkeypatch.setenv("BERT_MODEL", str(bert_artifact))
    monkeypatch.setenv("BERT_POOLING", "cls")
    kept = killed.folder.with_name("kept")
    shutil.copytree(killed.folder, kept)
    yield killed.folder
    shutil.rmtree(killed.folder)
    shutil.copytree(kept, killed.folder)  # with the times of the files: a changed one is another job's
    shutil.rmtree(kept)


def test_two_runs_do_not_share_an_output(killed: Killed) -> None:
    assert "another run has" in killed.refusal


def run(folder: Path, *options: str) -> int:
    return main([str(folder / "in.txt"), str(folder / "out.npy"), *options])


def test_the_same_job_continues_with_every_row_once(
    job_folder: Path, bert_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in (job_folder / "out.npy.parts").glob("0*")}
    assert "000000000000.1" in before
    assert run(job_folder, "--skip-errors") == 3
    assert "rows that were refused and have no answer: 3" in capsys.readouterr().err
    vectors = np.load(job_folder / "out.npy")
    with Engine.from_model(bert_artifact, pooling="cls") as engine:
        expected = np.asarray(list(engine.embed_all([f"dog {number}" for number in range(977)])))[np.arange(ROWS) % 977]
    expected[REFUSED] = np.nan
    assert np.array_equal(vectors, expected, equal_nan=True)
    assert not (job_folder / "out.npy.parts").exists()


@pytest.mark.parametrize(
    ("variables", "options", "difference"),
    [
        ({"BERT_POOLING": "mean"}, ["--skip-errors"], 'pooling was "cls" and is "mean"'),
        ({"BERT_NORMALIZE": "true"}, ["--skip-errors"], "normalize was false and is true"),
        ({"BERT_TRUNCATE": "true"}, ["--skip-errors"], "truncate was false and is true"),
        ({"BERT_MAX_CHARACTERS": "9"}, ["--skip-errors"], "limits.characters was 100000 and is 9"),
        ({}, [], "--skip-errors was true and is false"),
        ({}, ["--skip-errors", "--set", "prompt=a "], '--set prompt was unset and is "a "'),
    ],
)
def test_another_job_is_refused_by_its_difference_and_keeps_the_parts(
    job_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    options: list[str],
    difference: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = {path.name: path.stat().st_mtime_ns for path in (job_folder / "out.npy.parts").glob("0*")}
    assert run(job_folder, *options) == 2
    message = capsys.readouterr().err
    assert f"parts of another job: {difference}" in message
    assert "To continue it, run the command as it was; to start again, delete that folder" in message
    assert {path.name: path.stat().st_mtime_ns for path in (job_folder / "out.npy.parts").glob("0*")} == before
    assert not (job_folder / "out.npy").exists()


def test_an_other_artifact_file_size_of_parts_or_version_is_another_job(
    job_folder: Path, exported: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "PART_ROWS", 100)
        assert run(job_folder, "--skip-errors") == 2
    assert "rows of a part was 4096 and is 100" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "version", lambda _: "0.2.0")
        assert run(job_folder, "--skip-errors") == 2
    assert re.search(r'version was "[^"]+" and is "0\.2\.0"', capsys.readouterr().err)
    monkeypatch.setenv("BERT_MODEL", str(exported("distilbert").root))
    assert run(job_folder, "--skip-errors") == 2
    assert 'digest was "' in capsys.readouterr().err
    monkeypatch.setenv("BERT_MODEL", str(exported("bert").root))
    with (job_folder / "in.txt").open("a") as file:
        file.write("one more\n")
    assert run(job_folder, "--skip-errors") == 2
    assert "its size was" in capsys.readouterr().err


def test_a_job_without_a_finished_part_starts_again_with_other_options(
    bert_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("my dog\n\n", "utf-8")
    command = [str(tmp_path / "in.txt"), str(tmp_path / "out.npy"), "--model", str(bert_artifact)]
    assert main(command) == 1
    assert "line 2: input has no tokens" in capsys.readouterr().err
    assert (tmp_path / "out.npy.parts" / NOTE).exists()
    assert main([*command, "--skip-errors"]) == 3


def test_a_server_that_changes_adds_no_part_to_a_running_job(
    server: httpx.Client, serve: Serve, bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = serve(bert_artifact, BERT_POOLING="mean")
    monkeypatch.setattr(bulk, "PART_ROWS", 16)
    source, output = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("\n".join(f"dog {row}" for row in range(4000)) + "\n", "utf-8")
    with Client(str(server.base_url), patience_seconds=0.0) as client:
        kept: set[str] = set()

        def change_the_server(_: int) -> None:
            if found := {path.name for path in (tmp_path / "out.npy.parts").glob("0*")}:
                client._http.base_url = other.base_url  # as behind a balancer
                kept.update(found)

        with pytest.raises(FileError, match='pooling was "cls" and is "mean"'):
            run_job(Job(task="embed", source=source, output=output), client, on_rows=change_the_server)
    assert {path.name for path in (tmp_path / "out.npy.parts").glob("0*")} == kept
    assert not output.exists()
