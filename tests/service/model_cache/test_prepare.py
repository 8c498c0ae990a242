"""A checkpoint is exported once, by a child process; what went into an artifact decides whether it is found again."""

import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tqdm import tqdm

from packbert.model_export.artifact.manifest import Manifest
from packbert.service import prepare as exporter
from packbert.service.artifact import ManifestError
from packbert.service.model_cache import Cache, ModelError, Recipe, content_digest, file_states, find_source
from packbert.service.prepare import find_model, prepare_artifact
from packbert.service.settings import Settings
from tests.service.model_cache.helpers import copy_checkpoint, wanted


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A checkpoint, a cache, and the artifact that was made of the one in the other."""
    root = tmp_path_factory.mktemp("filled")
    checkpoint = copy_checkpoint(root / "my-bert")
    return checkpoint, root / "cache", prepare_artifact(*wanted(checkpoint), Cache(root / "cache"))


@pytest.fixture
def without_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process cannot be started."""
    monkeypatch.setattr(sys, "executable", "/nowhere")


@pytest.fixture
def copied(filled: tuple[Path, Path, Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """As `filled`, for a test that changes it; the checkpoint is at the same place in another folder."""
    checkpoint, cache, artifact = filled
    shutil.copytree(cache, tmp_path / "cache")
    shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    return tmp_path / checkpoint.name, tmp_path / "cache", tmp_path / "cache" / "artifacts" / artifact.name


def test_the_artifact_has_the_folders_name(filled: tuple[Path, Path, Path]) -> None:
    _, cache, artifact = filled
    assert Manifest.read(artifact / "cpu").name == "my-bert"
    assert artifact.parent == cache / "artifacts"
    assert artifact.name.startswith("my-bert-")


@pytest.mark.usefixtures("without_exporter")
def test_the_next_start_believes_the_digest_while_the_files_are_unchanged(copied: tuple[Path, Path, Path]) -> None:
    checkpoint, cache, artifact = copied
    assert prepare_artifact(*wanted(checkpoint), Cache(cache)) == artifact
    known = Cache(cache).recall(str(checkpoint))
    Cache(cache).remember(str(checkpoint), digest="another", files=known["files"])
    other = Recipe(digest="another", name="my-bert", device="cpu", precision="fp32", fast_int8=False, bf16_on="")
    artifact.rename(Cache(cache).artifact(other))
    assert prepare_artifact(*wanted(checkpoint), Cache(cache)) == Cache(cache).artifact(other)  # no file was read


@pytest.mark.usefixtures("without_exporter")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "endless", "3 GB"])
def test_what_is_no_file_of_a_checkpoint_is_refused_before_reading(
    copied: tuple[Path, Path, Path], name: str, kind: str
) -> None:
    checkpoint, cache, _ = copied
    path = checkpoint / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(3 * 2**30)
    fault = "has 3221225472 bytes; at most 67108864 are allowed" if kind == "3 GB" else "is not a regular file"
    if kind != "3 GB" or name != "model.safetensors":
        with pytest.raises(ModelError, match=f"{name} cannot be read: it {fault}"):
            prepare_artifact(*wanted(checkpoint), Cache(cache))


@pytest.mark.usefixtures("without_exporter")
def test_a_copy_with_other_times_is_the_same_checkpoint(copied: tuple[Path, Path, Path]) -> None:
    checkpoint, cache, artifact = copied
    os.utime(checkpoint / "config.json")
    assert prepare_artifact(*wanted(checkpoint), Cache(cache)) == artifact
    (checkpoint / "optimizer.pt").write_text("the exporter does not read it", "utf-8")
    assert prepare_artifact(*wanted(checkpoint), Cache(cache)) == artifact


@pytest.mark.usefixtures("without_exporter")
@pytest.mark.parametrize("what", ["content", "precision", "name", "file"])
def test_what_went_in_is_part_of_the_key(what: str, copied: tuple[Path, Path, Path]) -> None:
    checkpoint, cache, _ = copied
    if what == "content":
        weights = bytearray((checkpoint / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (checkpoint / "model.safetensors").write_bytes(weights)
    if what == "file":
        (checkpoint / "modules.json").write_text("[]", "utf-8")
    if what == "name":
        checkpoint = checkpoint.rename(checkpoint.with_name("her-bert"))
    with pytest.raises(ModelError, match="/nowhere"):  # it wants to export
        prepare_artifact(*wanted(checkpoint, precision="int8" if what == "precision" else "fp32"), Cache(cache))


@pytest.mark.usefixtures("without_exporter")
def test_a_changed_base_makes_another_digest_of_its_adapter(tmp_path: Path) -> None:
    base, adapter = copy_checkpoint(tmp_path / "base"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}), "utf-8")
    before = content_digest(adapter), file_states(adapter)
    (base / "config.json").write_text("{}", "utf-8")
    after = content_digest(adapter), file_states(adapter)
    assert (before[0] == after[0], before[1] == after[1]) == (False, False)


def test_a_cache_that_cannot_be_written_is_read(copied: tuple[Path, Path, Path]) -> None:
    checkpoint, cache, artifact = copied
    for folder in ("sources", "locks"):
        shutil.rmtree(cache / folder)
        (cache / folder).write_text("no folder", "utf-8")
    assert prepare_artifact(*wanted(checkpoint), Cache(cache)) == artifact


def test_without_an_artifact_such_a_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder", "utf-8")
    with pytest.raises(ModelError, match=r"cache cannot be written: .*; set BERT_CACHE to a folder that is writable"):
        prepare_artifact(*wanted(copy_checkpoint(tmp_path / "bert")), Cache(tmp_path / "cache"))


def test_an_artifact_is_served_as_it_is(filled: tuple[Path, Path, Path]) -> None:
    artifact = filled[2]
    for stated in ({}, {"BERT_PRECISION": "auto"}, {"BERT_PRECISION": "fp32"}):
        assert find_model(Settings.from_environment({"BERT_MODEL": str(artifact)} | stated)) == artifact
    with pytest.raises(ManifestError, match="is an artifact in fp32, not in int8: name its checkpoint, or leave"):
        find_model(Settings(model=str(artifact), precision="int8"))


def test_what_the_exporter_refuses_is_the_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty has no \*.safetensors or"):
        prepare_artifact(*wanted(tmp_path / "empty"), Cache(tmp_path / "cache"))
    assert not (tmp_path / "cache" / "artifacts").exists()
    assert [record.message for record in caplog.records] == [f"{tmp_path}/empty: exporting for cpu in fp32"]


@pytest.mark.parametrize("model", ["bert-base-uncased", "./models/brt", "/models/bert"])
def test_a_name_that_is_neither_folder_nor_hub_id(model: str) -> None:
    with pytest.raises(ModelError, match="is neither a folder nor a hub id: write ORG/NAME or ORG/NAME@REVISION"):
        find_source(model)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Shows the text as if a child had written it to stderr; returns the sentence that the child failed with."""
    monkeypatch.setattr(exporter, "PROGRESS_SECONDS", 0.0)

    def shown(text: str) -> str:
        read_end, write_end = os.pipe()
        with os.fdopen(write_end, "w", encoding="utf-8") as stream:
            stream.write(text)
        with os.fdopen(read_end, "rb") as written:
            return exporter._show(written)

    return shown


def bars() -> str:
    """What tqdm writes for a download of two bytes."""
    written = io.StringIO()
    with tqdm(total=2, desc="weights", unit="B", file=written, mininterval=0, ascii=True) as bar:
        bar.update()
        bar.update()
    return written.getvalue()


def test_in_a_log_progress_is_lines_without_bars(show: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert show(bars() + "\x1b[Aa warning\n") == ""
    assert caplog.messages[0].startswith("export: weights: 0% 0/2 [")
    assert caplog.messages[-2].startswith("export: weights: 100% 2/2 [")
    assert caplog.messages[-1] == "export: a warning"
    assert not [message for message in caplog.messages if "|" in message or "\x1b" in message]


def test_in_a_log_progress_is_seldom(
    show: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "PROGRESS_SECONDS", 1e9)
    caplog.set_level(logging.INFO)
    show(bars() + "a warning\n")
    assert caplog.messages == ["export: a warning"]


def test_on_a_terminal_progress_is_what_the_child_wrote(
    show: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    written = bars()
    assert show(written + "packbert export: the checkpoint is damaged\n") == "the checkpoint is damaged"
    assert capsys.readouterr().err == written


def test_a_sentence_after_an_unfinished_bar_is_found(show: Callable[[str], str]) -> None:
    assert show("weights:  50%|##   | 1/2packbert export: the disk is full\n") == "the disk is full"


def test_a_missing_exporter_is_named_with_the_way_out(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.check_exporter(find_source("a/b"))
    monkeypatch.setattr(exporter, "PACKAGES", ("numpy", "no_such_package"))
    fault = "a/b@main is no artifact, and this installation cannot export: no_such_package is missing; install packbert"
    with pytest.raises(ModelError, match=f"^{fault} with the extra"):
        exporter.check_exporter(find_source("a/b"))
    with pytest.raises(
        ModelError, match=f"is a part of an artifact, for one device: name the artifact, {bert_artifact}$"
    ):
        exporter.check_exporter(find_source(str(bert_artifact / "cpu")))


def test_a_child_that_the_system_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="the export failed with exit code 1"):
        exporter.run_exporter(["download", "org/bert"])
