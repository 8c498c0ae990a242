"""The service opens what model_export writes, and refuses a manifest with missing, unknown or wrong fields."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.artifact.batch import OUTPUTS, Tokens, pack
from model_export.artifact.manifest import FORMAT, MANIFEST, Manifest, ManifestError
from model_export.artifact.placement import Ints
from service.artifact import open_artifact


def changed(artifact: Path, folder: Path, change: dict[str, Any], *, without: str = "") -> Path:
    """A folder that holds only the artifact's manifest, with some fields changed."""
    content = json.loads((artifact / "cpu" / MANIFEST).read_text("utf-8")) | change
    content.pop(without, None)
    (folder / "cpu").mkdir()
    (folder / "cpu" / MANIFEST).write_text(json.dumps(content), "utf-8")
    return folder


def test_reading_a_written_manifest_gives_the_same_manifest(bert_artifact: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(bert_artifact / "cpu")
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_a_batch_has_all_inputs_of_the_graph(bert_artifact: Path) -> None:
    manifest = open_artifact(bert_artifact).manifest
    ids = (0, 1, 2)
    tokens = Tokens(ids=_ints(ids), types=_ints((0, 0, 0)), outputs=frozenset({"cls"}))
    feeds = pack([tokens]).feeds
    assert set(manifest.inputs) <= set(feeds)
    for name, tensor in manifest.inputs.items():
        assert str(feeds[name].dtype) == tensor.dtype, name
        assert feeds[name].ndim == len(tensor.shape), name
    assert set(manifest.outputs) <= set(OUTPUTS)


def test_another_format_is_refused_with_a_solution(bert_artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError, match=f"has format 99; this version reads format {FORMAT}: export the checkpoint again"
    ):
        open_artifact(changed(bert_artifact, tmp_path, {"format": 99}))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Manifest) if f.name != "format"])
def test_every_field_is_required(bert_artifact: Path, tmp_path: Path, field: str) -> None:
    with pytest.raises(ManifestError, match=f"damaged.*{field}"):
        open_artifact(changed(bert_artifact, tmp_path, {}, without=field))


@pytest.mark.parametrize(
    "change", [{"surprise": 1}, {"max_tokens": "512"}, {"sizes": []}, {"golden": [{"ids": []}]}, {"heads": [1]}]
)
def test_unknown_fields_and_wrong_types_are_refused(
    bert_artifact: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(ManifestError, match="damaged"):
        open_artifact(changed(bert_artifact, tmp_path, change))


def test_a_missing_file_is_reported_by_name(bert_artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"model\.onnx.* is missing"):
        open_artifact(changed(bert_artifact, tmp_path, {}))


def _ints(values: tuple[int, ...]) -> Ints:
    return np.array(values, np.int32)
