"""The exporter's check of a written artifact finds wrong vectors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.artifact.manifest import PACKED_ROWS
from packbert.model_export.errors import ExportError
from packbert.model_export.verification.reference import random_sequences
from packbert.model_export.verification.verify import Expected, verify
from packbert.service.artifact import open_artifact
from tests.poison import overwrite
from tests.service.engine.runners import open_runner


def own_outputs(artifact: Path) -> Expected:
    """The [CLS] vectors that the artifact itself computes for the random sequences."""
    opened = open_artifact(artifact)
    sizes = opened.manifest.sizes
    sequences = random_sequences(sizes["vocabulary"], opened.manifest.max_tokens)
    work = [Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls"})) for ids in sequences]
    layers = tuple(range(sizes["layers"]))
    short = [replace(one, outputs=frozenset({"attention"}), layers=layers) for one in work[:3]]
    shapes = [(sizes["layers"], sizes["heads"], len(one), len(one)) for one in short]
    with open_runner(opened, threads=1) as runtime:
        vectors = [row["cls"][0].astype(np.float64) for row in runtime.run_sync(work)[0] if row is not None]
        rows = zip(runtime.run_sync(short)[0], shapes, strict=True)
        attention = [row["attention"].reshape(shape).astype(np.float64) for row, shape in rows if row is not None]
    return Expected(
        sequences=sequences,
        outputs={"cls": vectors},
        attention=attention,
        layout=PACKED_ROWS,
        modes=(),
        of_means=False,
        vectors_of=lambda _: {},
    )


def test_one_vector_that_is_not_finite_fails_the_check_at_any_position(bert_artifact: Path, tmp_path: Path) -> None:
    expected = own_outputs(bert_artifact)
    (tmp_path / "cpu").mkdir()
    for file in (bert_artifact / "cpu").iterdir():
        (tmp_path / "cpu" / file.name).write_bytes(file.read_bytes())
    errors = verify(tmp_path / "cpu", expected, "fp32")
    assert errors["cls_max_abs_error"] < 1e-5
    assert errors["attention_max_abs_error"] < 1e-6
    longest = max(expected.sequences, key=len)
    others = {int(token) for ids in expected.sequences if ids is not longest for token in ids}
    overwrite(tmp_path / "cpu", next(int(token) for token in longest if int(token) not in others))
    with pytest.raises(ExportError, match="differs from the float64 reference by up to nan"):
        verify(tmp_path / "cpu", expected, "fp32")


@pytest.mark.parametrize("off", [0.002, -0.5])
def test_one_wrong_number_fails_the_check(bert_artifact: Path, off: float) -> None:
    expected = own_outputs(bert_artifact)
    expected.outputs["cls"][-1][7] += off
    with pytest.raises(ExportError, match=f"differs from the float64 reference by up to {abs(off):.3g}"):
        verify(bert_artifact / "cpu", expected, "fp32")


def test_attention_of_other_heads_fails_the_check(bert_artifact: Path) -> None:
    expected = own_outputs(bert_artifact)
    wrong = replace(expected, attention=[one[:, ::-1] for one in expected.attention])
    with pytest.raises(ExportError, match="does not compute the checkpoint's attention: the distance of its probab"):
        verify(bert_artifact / "cpu", wrong, "fp32")


def test_attention_that_is_not_finite_fails_the_check(bert_artifact: Path) -> None:
    expected = own_outputs(bert_artifact)
    expected.attention[0][0, 0, 0, 0] = np.nan
    with pytest.raises(ExportError, match="probabilities to the float64 reference is nan"):
        verify(bert_artifact / "cpu", expected, "fp32")
