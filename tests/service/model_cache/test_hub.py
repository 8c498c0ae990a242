"""A model by its hub id: downloaded and exported at the first start, served without the hub at the next ones."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from packbert.model_export.artifact.manifest import TOKENIZER, Manifest
from packbert.service.model_cache import Cache, ModelError
from packbert.service.prepare import prepare_artifact
from tests.hub import COMMIT, REPOSITORY, FakeHub
from tests.paths import GOLDEN
from tests.service.model_cache.helpers import wanted
from tests.serving import fail_to_serve, running

NAMES = ("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt")


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with FakeHub({name: (GOLDEN / "bert" / name).read_bytes() for name in NAMES}).serve() as served:
        yield served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the cache and of the hub's cache, for all tests of this module."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def variables(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hub.variables(folder / "hub").items():
        monkeypatch.setenv(name, value)


def test_one_command_serves_a_hub_id(hub: FakeHub, folder: Path) -> None:
    settings = {"BERT_MODEL": f"{REPOSITORY}@v1", "BERT_CACHE": str(folder / "cache")}
    with running(settings | hub.variables(folder / "hub")) as (process, client):
        info = client.get("/info").json()
        assert info["model"] == info["identity"]["source"] == REPOSITORY
        assert info["model_sha"] == info["identity"]["revision"] == COMMIT
        assert len(client.post("/embed", json={"inputs": "hello"}).json()[0]) == 32
        lines = [line.partition(" INFO service ")[2] for line in process.output().splitlines()]
    assert lines[0] == f"{REPOSITORY}@v1: downloading"
    assert f"{REPOSITORY}@v1: commit {COMMIT}" in lines
    assert f"{REPOSITORY}@v1: exporting for cpu in fp32" in lines
    assert any(line.startswith("  heads: cls, mean, ") for line in lines)  # the report


@pytest.mark.usefixtures("variables")
def test_the_next_start_needs_no_hub(hub: FakeHub, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = wanted(f"{REPOSITORY}@main")
    artifact = prepare_artifact(*model, Cache(folder / "cache"))  # the same files as v1: no export
    assert [one.name for one in (folder / "cache" / "artifacts").iterdir()] == [artifact.name]
    hub.requests.clear()
    assert prepare_artifact(*model, Cache(folder / "cache")) == artifact
    assert hub.requests == []
    assert caplog.messages[-1] == f"{REPOSITORY}@main ({COMMIT}): exported before, in {artifact}"


@pytest.mark.usefixtures("variables")
def test_a_newer_commit_is_taken_when_named_or_after_sources_are_forgotten(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(folder / "cache")
    before = prepare_artifact(*wanted(REPOSITORY), cache)
    monkeypatch.setattr(hub, "commit", "b" * 40)
    monkeypatch.setitem(hub.files, "README.md", b"# MacBERT\n")
    assert prepare_artifact(*wanted(REPOSITORY), cache) == before
    newer = prepare_artifact(*wanted(f"{REPOSITORY}@{'b' * 40}"), cache)
    assert newer != before
    assert Manifest.read(newer / "cpu").name == REPOSITORY
    assert prepare_artifact(*wanted(REPOSITORY), cache) == before
    shutil.rmtree(cache.folder / "sources")
    assert prepare_artifact(*wanted(REPOSITORY), cache) == newer


@pytest.mark.usefixtures("variables")
def test_offline_it_says_what_is_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    missing = f"^{REPOSITORY} is not a local folder and could not be downloaded: it is not, or not completely, in "
    with pytest.raises(ModelError, match=missing + ".*, and HF_HUB_OFFLINE is set: unset it, or run `packbert down"):
        prepare_artifact(*wanted(REPOSITORY), Cache(tmp_path / "cache"))
    assert prepare_artifact(*wanted(REPOSITORY), Cache(folder / "cache")).is_dir()
    assert not (tmp_path / "cache" / "artifacts").exists()


@pytest.mark.parametrize(("answer", "code"), [("503", 1), ("nothing listens", 1), ("404", 2)])
def test_a_start_without_the_hub_ends_with_a_code_that_is_restarted(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    settings = {"BERT_MODEL": REPOSITORY, "BERT_CACHE": str(tmp_path / "cache")} | hub.variables(tmp_path / "hub")
    if answer.isdigit():
        monkeypatch.setattr(hub, "status", int(answer))
    else:
        settings["HF_ENDPOINT"] = "http://127.0.0.1:9"
    ended = fail_to_serve(settings)
    assert ended.returncode == code
    assert f"packbert serve: {REPOSITORY} is not a local folder and could not be downloaded: " in ended.stderr


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ("no/such/model", "no/such/model is neither a folder nor a hub id"),
        ("{folder}", "has no *.safetensors or pytorch_model*.bin file"),
        ("{artifact}", "tokenizer.json is damaged"),
    ],
)
def test_a_model_that_cannot_be_served_ends_the_start_before_downloads(
    hub: FakeHub, bert_artifact: Path, tmp_path: Path, second: str, fault: str
) -> None:
    artifact, folder = shutil.copytree(bert_artifact, tmp_path / "artifact"), tmp_path / "folder"
    (artifact / "cpu" / TOKENIZER).write_text("{}")
    folder.mkdir()
    models = f"first={REPOSITORY} second={second.format(folder=folder, artifact=artifact)}"
    hub.requests.clear()
    settings = {"BERT_MODELS": models, "BERT_CACHE": str(tmp_path / "cache")}
    ended = fail_to_serve(settings | hub.variables(tmp_path / "hub"))
    assert (ended.returncode, hub.requests) == (2, [])
    assert fault in ended.stderr
