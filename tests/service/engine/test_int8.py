"""A start finds int8 weights that are wrong, and what it serves in int8 is as exact as its export says."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.artifact.manifest import MODEL, WEIGHTS
from packbert.model_export.verification.reference import one_word_texts
from packbert.model_export.verification.verify import HARD_WORDS
from packbert.service.artifact import open_artifact, read_artifact
from packbert.service.engine.calibration import cosine, self_test
from packbert.service.errors import DeviceError
from tests.export.goldens import Exported
from tests.service.engine.changed_files import with_own_digests
from tests.service.engine.runners import open_runner


@pytest.mark.parametrize("name", ["bert", "sample"])
def test_the_service_is_as_exact_as_the_export(name: str, exported: Exported) -> None:
    artifact = open_artifact(exported(name, "int8").root)
    with open_runner(artifact, threads=1) as runner:
        found = self_test(runner)
    assert found == pytest.approx(artifact.manifest.verification["golden_smallest_cosine"], abs=2e-4)
    assert found > 0.9975


def test_the_exports_figure_includes_texts_of_one_word(exported: Exported) -> None:
    exact, rounded = exported("sample"), exported("sample", "int8")
    frame = [exact.manifest.special_tokens[name] for name in ("cls", "sep")]
    texts = one_word_texts(exact.manifest.sizes["vocabulary"], frame)
    asked = [Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"cls", "mean"})) for ids in texts]
    rows = [*zip(rounded.run(asked), exact.run(asked), strict=True)]
    hard = sorted(rows, key=lambda row: float(np.linalg.norm(row[0]["mean"])))[:HARD_WORDS]
    figures = rounded.manifest.verification
    for name in ("cls", "mean"):
        smallest = min(cosine(of_int8[name][0], of_fp32[name][0]) for of_int8, of_fp32 in hard)
        assert figures[f"{name}_smallest_cosine"] < smallest + 1e-4
    assert figures["cls_smallest_cosine"] < figures["golden_smallest_cosine"]


def test_the_self_test_sees_weights_that_are_clipped(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported("sample", "int8").root, tmp_path / "artifact")
    folder = tmp_path / "artifact" / "cpu"
    for weight in onnx.load(folder / MODEL, load_external_data=False).graph.initializer:
        if weight.data_type == onnx.TensorProto.INT8:
            place = {one.key: int(one.value) for one in weight.external_data if one.key != "location"}
            codes = np.memmap(folder / WEIGHTS, np.int8, "r+", place["offset"], place["length"])
            np.clip(codes, -96, 96, out=codes)
    with_own_digests(folder)
    with (
        open_runner(read_artifact(tmp_path / "artifact", "cpu"), threads=1) as clipped,
        pytest.raises(DeviceError, match="the self-test failed: cosine"),
    ):
        self_test(clipped)
