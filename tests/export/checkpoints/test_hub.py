"""A checkpoint by its hub id, from a local hub."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packbert.model_export.artifact.manifest import Manifest
from tests.hub import COMMIT, REPOSITORY, FakeHub
from tests.paths import GOLDEN

MODULES = GOLDEN / "sentence-transformers" / "dense"
TOKEN = {"HF_TOKEN": "right"}
FILES = {
    str(path.relative_to(folder)): path.read_bytes()
    for folder in (GOLDEN / "bert", MODULES)
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.name not in ("expected.npz", "answers.json")
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(dict(FILES)).serve() as served:
        yield served


def run(
    hub: FakeHub, folder: Path, *arguments: str, command: str = "export", **more: str
) -> subprocess.CompletedProcess[str]:
    """`packbert export`, or another command, with `folder`/hub as the hub's cache."""
    environment = os.environ | hub.variables(folder / "hub") | more
    words = [sys.executable, "-m", "packbert", command, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def export_from(hub: FakeHub, folder: Path) -> str:
    """The report of an export of the repository to `folder`/artifact."""
    finished = run(hub, folder, f"{REPOSITORY}@v1", str(folder / "artifact"))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_repository_without_safetensors_is_downloaded_as_a_pickle(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    hub.files["pytorch_model.bin"] = (GOLDEN / "pickles" / "bert.bin").read_bytes()
    export_from(hub, tmp_path)
    heads = Manifest.read(tmp_path / "artifact" / "cpu").heads
    assert heads == ("cls", "mean", "tokens", "layers", "pooler", "pair", "fill_mask", "sentence", "attention")


def test_a_hub_id_is_downloaded_and_is_the_artifacts_name(hub: FakeHub, tmp_path: Path) -> None:
    report = export_from(hub, tmp_path)
    manifest = Manifest.read(tmp_path / "artifact" / "cpu")
    assert manifest.name == manifest.identity.source == REPOSITORY
    assert manifest.identity.revision == COMMIT
    assert manifest.pair_labels == ("in_order", "swapped")  # by the repository's name
    assert manifest.embedding.pooling == "sentence"
    assert manifest.embedding.similarity == "cosine"  # of config_sentence_transformers.json
    assert "embeddings by default: Pooling(mean), Dense(32 to 16, Tanh), Normalize; 16 numbers" in report
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.suffix in (".bin", ".h5")]


def test_a_broken_download_is_an_error_and_the_next_one_continues(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut = "model.safetensors"
    finished = run(hub, tmp_path, f"{REPOSITORY}@v1", str(tmp_path / "artifact"))
    assert finished.returncode == os.EX_TEMPFAIL
    assert "could not be downloaded" in finished.stderr
    assert not (tmp_path / "artifact").exists()
    offline = run(hub, tmp_path, f"{REPOSITORY}@v1", str(tmp_path / "artifact"), HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert not (tmp_path / "artifact").exists()
    hub.cut = ""
    export_from(hub, tmp_path)


def test_what_was_downloaded_is_enough_offline(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files["modules.json"]
    folder = run(hub, tmp_path, REPOSITORY, command="download").stdout.strip()
    assert (Path(folder) / "config.json").is_file()
    offline = run(hub, tmp_path, REPOSITORY, HF_HUB_OFFLINE="1", command="download")
    assert offline.stdout.strip() == folder


def test_a_folder_downloaded_in_part_is_not_a_plain_bert(hub: FakeHub, tmp_path: Path) -> None:
    folder = Path(run(hub, tmp_path, REPOSITORY, command="download").stdout.strip())
    (folder / "modules.json").unlink()  # transformers never downloads it
    for listing in (folder.parent.parent / "trees").glob("*"):  # of newer versions of huggingface_hub
        listing.unlink()
    offline = run(hub, tmp_path, REPOSITORY, HF_HUB_OFFLINE="1", command="download")
    assert offline.returncode == 2
    assert "does not know whether it has modules.json" in offline.stderr


@pytest.mark.parametrize(
    ("name", "variables", "status", "code", "sentence"),
    [
        (REPOSITORY, {}, 0, 2, "set HF_TOKEN to a token of that account"),
        (REPOSITORY, {"HF_TOKEN": "wrong"}, 0, 2, "set HF_TOKEN to a token of that account"),
        ("example/no-such-bert", TOKEN, 0, 2, "check the name; for a private repository set HF_TOKEN"),
        (f"{REPOSITORY}@v9", TOKEN, 0, 2, "check the part after @: a branch, a tag or a commit"),
        (REPOSITORY, TOKEN, 429, os.EX_TEMPFAIL, "429 "),  # a failure may pass, a refusal does not
        (REPOSITORY, TOKEN, 403, 2, "403 "),
        (REPOSITORY, TOKEN | {"HF_ENDPOINT": "htp://127.0.0.1:9"}, 0, 2, "HF_ENDPOINT (htp://127.0.0.1:9)"),
        (REPOSITORY, {"HF_HUB_OFFLINE": "1"}, 0, 2, "in FOLDER/hub/hub, and HF_HUB_OFFLINE is set"),
        (REPOSITORY, TOKEN, 0, 0, ""),
    ],
)
def test_a_download_that_fails_has_a_way_out(
    name: str, variables: dict[str, str], status: int, code: int, sentence: str, hub: FakeHub, tmp_path: Path
) -> None:
    hub.token, hub.status = "right", status
    finished = run(hub, tmp_path, name, command="download", **variables)
    assert finished.returncode == code
    assert sentence.replace("FOLDER", str(tmp_path)) in finished.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_download_ends_at_once(number: int, hub: FakeHub, tmp_path: Path) -> None:
    hub.stall = "model.safetensors"
    words = [sys.executable, "-m", "packbert", "download", REPOSITORY]
    environment = os.environ | hub.variables(tmp_path / "hub")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        hub.stalled.wait()
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.endswith("\npackbert: interrupted, nothing was written; the next download continues\n")
