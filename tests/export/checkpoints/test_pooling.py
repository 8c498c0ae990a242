"""The pooling that sentence-transformers stored is the default; one that is not supported is reported."""

from pathlib import Path
from typing import Any

import pytest

from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.pooling import pooling_of
from model_export.errors import ExportError
from tests.export.goldens import sentence_transformers_checkpoint
from tests.paths import GOLDEN

MEAN = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
BOTH = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
MAX = {"pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(MEAN, "mean"), (CLS, "cls"), ({"pooling_mode": "mean"}, "mean"), ({"pooling_mode": ["cls"]}, "cls")],
)
def test_the_pooling_is_the_one_that_is_enabled(tmp_path: Path, pooling: Any, expected: str) -> None:
    one = sentence_transformers_checkpoint(tmp_path / "checkpoint", pooling)
    assert pooling_of(one) == expected
    assert not one.assumed


def test_without_modules_it_is_cls() -> None:
    assert pooling_of(Checkpoint(GOLDEN / "bert")) == "cls"


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        (MAX, "max_tokens"),
        (BOTH, "cls_token and mean_tokens"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({}, "nothing"),
    ],
)
def test_a_pooling_that_is_not_supported_is_reported(tmp_path: Path, pooling: Any, said: str) -> None:
    one = sentence_transformers_checkpoint(tmp_path / "checkpoint", pooling)
    assert pooling_of(one) == "cls"
    assert one.assumed["pooling"] == f"cls: 1_Pooling/config.json asks for {said}, which is not supported"


def test_a_module_that_is_not_supported_is_reported(tmp_path: Path) -> None:
    one = sentence_transformers_checkpoint(
        tmp_path / "checkpoint", MEAN, ("Transformer", "Pooling", "Dense", "Normalize")
    )
    assert pooling_of(one) == "mean"
    expected = "those before sentence_transformers.models.Dense, which is not supported"
    assert one.assumed["sentence vectors"] == expected


@pytest.mark.parametrize("content", ["[", "7", '[{"path": "1_Pooling"}]', '["1_Pooling"]'])
def test_a_damaged_list_of_modules_is_refused(tmp_path: Path, content: str) -> None:
    one = sentence_transformers_checkpoint(tmp_path / "checkpoint", MEAN)
    (one.folder / "modules.json").write_text(content, "utf-8")
    with pytest.raises(ExportError, match=r"modules\.json cannot be read"):
        pooling_of(one)
