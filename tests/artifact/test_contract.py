"""The service opens what model_export writes, and refuses a manifest with missing or unknown fields."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.artifact.manifest import (
    CHECKSUM,
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestError,
    _checksum,
)
from packbert.service.artifact import open_artifact, read_artifact


def changed(artifact: Path, folder: Path, change: dict[str, Any], *, without: str = "") -> Path:
    """A folder that holds only the artifact's manifest, with some fields changed and the checksum of these."""
    content = json.loads((artifact / "cpu" / MANIFEST).read_text("utf-8")) | change
    del content[CHECKSUM]
    content.pop(without, None)
    content[CHECKSUM] = _checksum(content)
    (folder / "cpu").mkdir()
    (folder / "cpu" / MANIFEST).write_text(json.dumps(content), "utf-8")
    return folder


def test_a_manifest_that_is_too_large_is_neither_written_nor_read(bert_artifact: Path, tmp_path: Path) -> None:
    """To read it holds the event loop, and `folder` is what the client of /admin/models names."""
    manifest = Manifest.read(bert_artifact / "cpu")
    large = dataclasses.replace(manifest, labels=("label" * (MAX_MANIFEST_BYTES // 5),))
    with pytest.raises(ManifestError, match="reads at most 4194304: shorten the names of its labels or its prompts"):
        large.write(tmp_path)
    assert not (tmp_path / MANIFEST).exists()
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    with (tmp_path / MANIFEST).open("a") as file:
        file.write(" " * MAX_MANIFEST_BYTES)
    with pytest.raises(ManifestError, match=r"manifest\.json cannot be read: .*at most 4194304 are allowed"):
        Manifest.read(tmp_path)


def test_the_digest_does_not_depend_on_the_served_name(bert_artifact: Path, tmp_path: Path) -> None:
    artifact = open_artifact(bert_artifact)
    stated = json.loads((artifact.folder / MANIFEST).read_text("utf-8"))[CHECKSUM]
    assert artifact.digest == stated[:12] == artifact.served_as("another").digest
    renamed = dataclasses.replace(artifact.manifest, labels=("another",))
    renamed.write(tmp_path)
    assert read_artifact(tmp_path.parent, tmp_path.name).digest == renamed.digest != artifact.digest


@pytest.mark.parametrize(
    ("change", "without", "fault"),
    [
        ({"format": 99}, "", f"has format 99; this version reads format {FORMAT}: export the checkpoint again"),
        ({"surprise": 1}, "", r"damaged.*surprise"),
        ({}, "", r"model\.onnx.* is missing"),
        *(({}, one.name, f"damaged.*{one.name}") for one in dataclasses.fields(Manifest) if one.name != "format"),
    ],
)
def test_a_manifest_with_other_fields_is_refused(
    change: dict[str, Any], without: str, fault: str, bert_artifact: Path, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match=fault):
        open_artifact(changed(bert_artifact, tmp_path, change, without=without))


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}},
        {"golden": []},
        {"max_tokens": 145},
        {"special_tokens": {"mask": 170}},
        {"sizes": {"vocabulary": 171}},
        {"surprise": 1},
        {"sha256": "0"},
    ],
)
def test_a_manifest_that_was_changed_since_the_export_is_refused(
    bert_artifact: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = Path(shutil.copytree(bert_artifact, tmp_path / "artifact")) / "cpu" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change), "utf-8")
    with pytest.raises(ManifestError, match=r"json was changed since the export.*export the checkpoint again"):
        open_artifact(tmp_path / "artifact")


def test_a_manifest_that_was_only_reformatted_is_read_and_one_nested_too_deeply_refused(
    bert_artifact: Path, tmp_path: Path
) -> None:
    content = json.loads((bert_artifact / "cpu" / MANIFEST).read_text("utf-8"))
    (tmp_path / MANIFEST).write_text(json.dumps(dict(reversed(content.items()))), "utf-8")
    assert Manifest.read(tmp_path) == Manifest.read(bert_artifact / "cpu")
    (tmp_path / MANIFEST).write_text("[" * 100_000, "utf-8")
    with pytest.raises(ManifestError, match="cannot be read"):
        Manifest.read(tmp_path)
