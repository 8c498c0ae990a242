"""ColBERT's and BGE-M3's files are read as their authors read them, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.artifact.manifest import Side, checkpoint_files
from packbert.model_export.describe import describe_checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from tests import multi_vectors

SETTINGS = {"stanford": "artifact.metadata"}


def changed(folder: Path, name: str, **settings: Any) -> Path:
    """The golden checkpoint with other settings; None leaves one out."""
    multi_vectors.checkpoint(name, folder)
    path = folder / SETTINGS.get(name, "config_sentence_transformers.json")
    content = json.loads(path.read_text("utf-8")) | settings
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")
    return folder


def test_the_sides_of_a_colbert_are_in_the_manifest(tmp_path: Path) -> None:
    source = changed(tmp_path / "checkpoint", "stanford", mask_punctuation=False, doc_maxlen=None)
    manifest = export(source, tmp_path / "artifact")
    zero, one = 23, 24  # the ids of its markers
    assert manifest.sides == {
        "query": Side(max_tokens=23, marker=(zero,), fills=True),
        "document": Side(max_tokens=143, marker=(one,)),  # 220 in ColBERT, and this model has 144 positions
    }
    assert (manifest.max_tokens, manifest.embedding.pooling, manifest.embedding.dimensions) == (144, "multi", 12)
    assert manifest.verification["multi_max_abs_error"] < 1e-5
    assert "multi" in str(describe_checkpoint(source))


def test_bge_m3s_weights_are_verified_and_its_files_are_the_checkpoints(tmp_path: Path) -> None:
    source = multi_vectors.checkpoint("bge-m3", tmp_path / "checkpoint")
    assert {"colbert_linear.pt", "sparse_linear.pt"} <= {path.name for path in checkpoint_files(source)}
    manifest = export(source, tmp_path / "artifact")
    assert {"multi", "token_weights", "sparse"} <= {*manifest.heads}
    assert manifest.sparse == "token_weights"
    assert (manifest.embedding.pooling, manifest.embedding.normalize) == ("cls", True)
    assert manifest.verification["token_weights_max_abs_error"] < 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("stanford", {"query_maxlen": "32"}, "sets query_length to '32'; it must be a value like 32"),
        ("stanford", {"doc_maxlen": 2}, "sets document_length to 2; it must be a value like 180"),
        ("stanford", {"similarity": "l2"}, "sets similarity to 'l2'; only 'cosine' is computed"),
        ("stanford", {"doc_token_id": "[unused1]"}, r"marks texts with '\[unused1\]', and its tokenizer has no such"),
        ("pylate", {"query_length": 10}, "filled up to 10 tokens .* in family modernbert that is computed up to 9"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = changed(tmp_path / "checkpoint", name, **settings)
    with pytest.raises(ExportError, match=message):
        export(source, tmp_path / "artifact")
    assert not (tmp_path / "artifact" / "cpu").exists()
