"""A sentence-transformers folder: which pooling its vectors were trained with is told at export."""

import json
import shutil
from pathlib import Path

import pytest

from model_export.export import export
from model_export.sentences import trained_pooling
from tests.export.goldens import GOLDEN

MEAN, CLS, MAX = (
    {f"pooling_mode_{name}": True, "pooling_mode_x": False, "word_embedding_dimension": 32} for name in ("mean_tokens", "cls_token", "max_tokens")
)


def written(folder: Path, pooling: object, *more: str) -> Path:
    """`folder` with modules.json: a transformer, a pooling, and `more`."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *((kind, kind) for kind in more)]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("pooling", "more", "said"),
    [
        (MEAN, (), 'as "pooling": "mean" does'),
        (CLS, ("Normalize",), 'as "pooling": "cls", "normalize": true does'),
        ({"pooling_mode": "mean"}, (), 'as "pooling": "mean" does'),
        (MEAN, ("Dense",), "with Dense, which no pooling of /embed does"),
        (MAX, (), "with max_tokens, which no pooling of /embed does"),
        (MEAN | CLS, (), "with mean_tokens, cls_token, which no pooling of /embed does"),
    ],
)
def test_it_is_said_how_to_ask_for_the_models_own_vectors_or_that_one_cannot(pooling: object, more: tuple[str, ...], said: str, tmp_path: Path):
    assert trained_pooling(written(tmp_path / "model", pooling, *more))["pooling"].endswith(said)


def test_the_manifest_has_it(tmp_path: Path):
    source = written(tmp_path / "checkpoint", MEAN)
    shutil.copytree(GOLDEN / "bert", source, dirs_exist_ok=True)
    assert "mean" in export(source, tmp_path / "artifact").assumed["pooling"]


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", "null", "[]", '[{"type": "x"}]', '[{"type": "a.Pooling", "path": "nowhere"}]'])
def test_a_damaged_modules_json_says_nothing(content: str, tmp_path: Path):
    (tmp_path / "modules.json").write_text(content, "utf-8")
    assert trained_pooling(tmp_path) == {}
