"""The service opens what model_export writes, and refuses a manifest with missing, unknown or wrong fields."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.artifact.batch import OUTPUTS, Tokens, pack
from packbert.model_export.artifact.manifest import FORMAT, MANIFEST, Manifest, ManifestError
from packbert.model_export.artifact.rows import Ints
from packbert.service.artifact import open_artifact
from tests.paths import GOLDEN


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


def _sizes(artifact: Path, **sizes: int) -> dict[str, Any]:
    return {"sizes": dict(Manifest.read(artifact / "cpu").sizes) | sizes}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"files": {}},
            r"lists the checksums of \[\], not of model.onnx, model.onnx.data, tokenizer.json, attention.onnx, layers",
        ),
        ({"files": {"../secret": "0"}}, "lists the checksums of"),
        ({"golden": []}, "has no golden sequences"),
        ({"max_tokens": 5}, "has a golden sequence of 17 tokens, but max_tokens is 5"),
        ({"max_tokens": 145}, "gives max_tokens as 145, but model.onnx has 144 positions"),
        ({"special_tokens": {"mask": 170}}, "gives the mask token the id 170, but the vocabulary has 170 entries"),
        ({"vocabulary": 171}, "gives vocabulary as 171 in sizes, but model.onnx has 170"),
        ({"vocabulary": 0}, "gives vocabulary as 0 in sizes; at least 1 is possible"),
        ({"vocabulary": 100}, "has a golden sequence with the id 1[0-9][0-9], but the vocabulary has 100 entries"),
        ({"hidden": 64}, "gives hidden as 64 in sizes, but the output cls has 32 channels"),
        ({"segments": 9}, "gives segments as 9 in sizes, but model.onnx has 2"),
        ({"parameters": 10**12}, "gives parameters as 1000000000000 in sizes, but model.onnx has"),
    ],
)
def test_a_manifest_that_contradicts_itself_or_its_graph_is_refused(
    bert_artifact: Path, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    whole = change if set(change) & {"files", "golden", "max_tokens", "special_tokens"} else None
    content = whole or _sizes(bert_artifact, **change)
    folder = tmp_path / "artifact"
    shutil.copytree(bert_artifact, folder)
    path = folder / "cpu" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | content), "utf-8")
    with pytest.raises(ManifestError, match=f"{sentence}.*: it was changed or made elsewhere; export the checkpoint"):
        open_artifact(folder)


def test_a_manifest_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / MANIFEST).write_text("[" * 100_000, "utf-8")
    with pytest.raises(ManifestError, match="cannot be read"):
        open_artifact(tmp_path)


def test_a_checkpoint_is_not_advised_to_be_exported_into_its_own_folder() -> None:
    with pytest.raises(ManifestError) as raised:
        open_artifact(GOLDEN / "bert")
    assert f"is a checkpoint, not an artifact: export it into another folder, `packbert export {GOLDEN}" in str(
        raised.value
    )
    assert "/bert ARTIFACT --device cpu`, and set BERT_ARTIFACT to that" in str(raised.value)


def _ints(values: tuple[int, ...]) -> Ints:
    return np.array(values, np.int32)
