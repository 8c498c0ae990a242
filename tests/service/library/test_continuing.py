"""Jobs that are killed for real: the same job continues, with every row once; another job is refused, and said why."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert import Engine
from packbert.service.library import job as bulk
from packbert.service.library.bulk_command import main
from packbert.service.library.client import Client
from packbert.service.library.client_command import main as client_main
from packbert.service.library.files import FileError
from packbert.service.library.job import NOTE, Job, RequestFailed, run_job
from packbert.service.settings import variables_with
from tests.conftest import Serve

ROWS = 20_000  # five parts, of which the first is written long before the last
REFUSED = [7, 5000, 19_999]  # of the first part, the second and the last
TEXTS = ["" if row in REFUSED else f"dog {row % 977}" for row in range(ROWS)]


def start(command: list[str], **variables: str) -> subprocess.Popen[str]:
    clean = {
        name: value for name, value in variables_with(**variables).items() if name[:5] != "BERT_" or name in variables
    }
    return subprocess.Popen([sys.executable, "-m", *command], env=clean, stderr=subprocess.PIPE, text=True)


def wait_for_a_part(process: subprocess.Popen[str], folder: Path) -> None:
    while not list(folder.glob("0*")) and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def killed(bert_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with in.txt and the parts of a job under BERT_POOLING=cls and --skip-errors, killed by SIGKILL."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "in.txt").write_text("\n".join(TEXTS) + "\n", "utf-8")
    command = ["packbert", "bulk", str(folder / "in.txt"), str(folder / "out.npy"), "--skip-errors"]
    process = start(command, BERT_MODEL=str(bert_artifact), BERT_POOLING="cls")
    wait_for_a_part(process, folder / "out.npy.parts")
    kill(process)
    assert not (folder / "out.npy").exists()
    return folder


@contextmanager
def restored(killed: Path) -> Iterator[Path]:
    """The folder as the kill left it, before and after."""
    kept = killed.with_name("kept")
    shutil.copytree(killed, kept)
    try:
        yield killed
    finally:
        shutil.rmtree(killed)
        shutil.copytree(kept, killed)  # with the times of the files: a changed one is another job's
        shutil.rmtree(kept)


@pytest.fixture
def job_folder(killed: Path, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BERT_MODEL", str(bert_artifact))
    monkeypatch.setenv("BERT_POOLING", "cls")
    with restored(killed) as folder:
        yield folder


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


def test_two_runs_do_not_share_an_output_and_a_kill_releases_it(
    job_folder: Path, bert_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["packbert", "bulk", str(job_folder / "in.txt"), str(job_folder / "other.npy"), "--skip-errors"]
    first = start(command, BERT_MODEL=str(bert_artifact), BERT_POOLING="cls")
    wait_for_a_part(first, job_folder / "other.npy.parts")
    first.send_signal(signal.SIGSTOP)  # it neither ends nor goes on
    arguments = [str(job_folder / "in.txt"), str(job_folder / "other.npy"), "--skip-errors"]
    assert main(arguments) == 2
    assert "another run has" in capsys.readouterr().err
    kill(first)
    assert main(arguments) == 3
    assert np.isnan(np.load(job_folder / "other.npy")).all(axis=1).nonzero()[0].tolist() == REFUSED


def test_a_job_without_a_finished_part_starts_again_with_other_options(
    bert_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("my dog\n\n", "utf-8")
    command = [str(tmp_path / "in.txt"), str(tmp_path / "out.npy"), "--model", str(bert_artifact)]
    assert main(command) == 1
    assert "line 2: input has no tokens" in capsys.readouterr().err
    assert (tmp_path / "out.npy.parts" / NOTE).exists()
    assert main([*command, "--skip-errors"]) == 3


@pytest.fixture
def urls(serve: Serve, bert_artifact: Path) -> list[str]:
    """Of two services, the second of which has another pooling."""
    return [str(serve(bert_artifact, BERT_POOLING=pooling).base_url) for pooling in ("cls", "mean")]


def test_a_server_that_changes_adds_no_part_to_a_running_job(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_ROWS", 16)
    source, output = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("\n".join(f"dog {row}" for row in range(4000)) + "\n", "utf-8")
    with Client(urls[0], patience_seconds=0.0) as client:
        kept: set[str] = set()

        def change_the_server(_: int) -> None:
            if found := {path.name for path in (tmp_path / "out.npy.parts").glob("0*")}:
                client._http.base_url = httpx.URL(urls[1])  # as behind a balancer
                kept.update(found)

        with pytest.raises(FileError, match='pooling was "cls" and is "mean"'):
            run_job(Job(task="embed", source=source, output=output), client, on_rows=change_the_server)
    assert {path.name for path in (tmp_path / "out.npy.parts").glob("0*")} == kept
    assert not output.exists()


def test_a_refused_key_is_no_refused_row(
    bert_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("my dog\n", "utf-8")
    with ServiceProcess({"BERT_MODEL": str(bert_artifact), "BERT_API_KEY": "secret"}) as server:
        assert client_main(["embed", str(source), "-o", str(output), "--skip-errors", "--url", server.url]) == 1
    assert "packbert client: this server requires `Authorization: Bearer KEY`" in capsys.readouterr().err
    assert not output.exists()
    with Client("http://127.0.0.1:1", patience_seconds=0.0) as client, pytest.raises(RequestFailed, match="/info"):
        client.info()
