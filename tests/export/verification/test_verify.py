"""The exporter's check of a written artifact finds wrong vectors."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.verification.verify import Expected, reference_outputs, verify
from tests.paths import GOLDEN
from tests.poison import overwrite


def reference() -> Expected:
    """The [CLS] vectors and the attention of the golden BERT."""
    built = build_graph(Checkpoint(GOLDEN / "bert"), "fp32", "cpu")
    return reference_outputs(built.reference, ["cls"], built.heads.sentence, layout=built.layout, max_tokens=144)


def test_one_vector_that_is_not_finite_fails_the_check_at_any_position(bert_artifact: Path, tmp_path: Path) -> None:
    expected = reference()
    shutil.copytree(bert_artifact / "cpu", tmp_path / "cpu")
    errors = verify(tmp_path / "cpu", expected, "fp32")
    assert errors["cls_max_abs_error"] < 1e-5
    assert errors["attention_max_abs_error"] < 1e-6
    longest = max(expected.sequences, key=len)
    others = {int(token) for ids in expected.sequences if ids is not longest for token in ids}
    overwrite(tmp_path / "cpu", next(int(token) for token in longest if int(token) not in others))
    with pytest.raises(ExportError, match="differs from the float64 reference by up to nan"):
        verify(tmp_path / "cpu", expected, "fp32")


@pytest.mark.parametrize(
    ("output", "off", "error"),
    [
        ("cls", 0.002, "differs from the float64 reference by up to 0.002"),
        ("cls", -0.5, "differs from the float64 reference by up to 0.5"),
        ("attention", np.nan, "probabilities to the float64 reference is nan"),
    ],
)
def test_one_wrong_number_fails_the_check(output: str, off: float, error: str, bert_artifact: Path) -> None:
    expected = reference()
    array = expected.attention[0] if output == "attention" else expected.outputs[output][-1]
    array.flat[7] += off
    with pytest.raises(ExportError, match=error):
        verify(bert_artifact / "cpu", expected, "fp32")


def test_attention_of_other_heads_fails_the_check(bert_artifact: Path) -> None:
    expected = reference()
    wrong = replace(expected, attention=[one[:, ::-1] for one in expected.attention])
    with pytest.raises(ExportError, match="does not compute the checkpoint's attention: the distance of its probab"):
        verify(bert_artifact / "cpu", wrong, "fp32")
