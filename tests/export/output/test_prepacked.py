"""Packed weights are used, ignored on another machine, refused if damaged; the answers never change by a bit."""

import logging
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.model_export.artifact.manifest import MODEL, PREPACKED_FOR, WEIGHTS
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.service.artifact import ManifestError, open_artifact, read_artifact
from tests.e2e.test_neighbours import equal
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_own_digests
from tests.service.engine.runners import PER_CORE, open_runner

OUTPUTS = frozenset({"cls", "mean", "pooler", "pair", "top_logits", "top_ids", "log_sum_exp"})
ENTRY = re.compile(r"([^|]+)\|(\d+);(\d+);(.*)")  # of a packed weight: operator and hash; offset and length in the file


@pytest.fixture(scope="module", params=["fp32", "int8"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One checkpoint exported without and with packed weights."""
    folder = tmp_path_factory.mktemp("packed")
    for name in ("plain", "packed"):
        export(GOLDEN / "bert", folder / name, precision=request.param, prepacked=name == "packed")
    return folder / "plain", folder / "packed"


def answers(artifact: Path) -> list[Row | None]:
    """On all cores, then in a per-core session."""
    asked = partial(Tokens, outputs=OUTPUTS, masks=(1,), top_k=3)
    texts = [asked(ids=np.arange(5, 5 + n, dtype=np.int32), types=np.zeros(n, np.int32)) for n in (2, 9, 40, 64)]
    with open_runner(read_artifact(artifact, "cpu"), concurrency=PER_CORE) as runtime:
        return [row for all_cores in (True, False) for row in runtime.run_sync(texts, all_cores=all_cores)[0]]


def packed_entries(model: onnx.ModelProto) -> list[onnx.StringStringEntryProto]:
    entries = [one for weight in model.graph.initializer for one in weight.external_data]
    return [one for one in entries if one.key.startswith("prepacked")]


def graph_of(artifact: Path) -> onnx.ModelProto:
    return onnx.load(artifact / "cpu" / MODEL, load_external_data=False)


def changed(artifact: Path, folder: Path, *, processor: str = "", entry: Callable[[str], str] = str) -> Path:
    """A copy whose model has another processor in its metadata, or other entries for its packed weights."""
    shutil.copytree(artifact, folder)
    model = graph_of(folder)
    if processor:
        next(one for one in model.metadata_props if one.key == PREPACKED_FOR).value = processor
    for one in packed_entries(model):
        one.value = entry(one.value)
    (folder / "cpu" / MODEL).write_bytes(model.SerializeToString())
    with_own_digests(folder / "cpu")
    return folder


def with_zeros(artifact: Path) -> Path:
    """The same artifact, every packed weight overwritten."""
    with (artifact / "cpu" / WEIGHTS).open("r+b") as file:
        for one in packed_entries(graph_of(artifact)):
            found = ENTRY.fullmatch(one.value)
            assert found
            file.seek(int(found[2]))
            file.write(bytes(int(found[3])))
    with_own_digests(artifact / "cpu")
    return artifact


def test_packed_weights_are_read_and_change_no_answer(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Those of another layout are packed again."""
    plain, packed = pair
    assert [bool(packed_entries(graph_of(one))) for one in pair] == [False, True]
    sizes = [open_artifact(one).weights_bytes for one in pair]  # they decide on per-core sessions
    assert sizes[0] == sizes[1]
    expected = answers(plain)
    assert all(map(equal, answers(packed), expected))
    assert not all(map(equal, answers(with_zeros(changed(packed, tmp_path / "zeros"))), expected))
    elsewhere = changed(packed, tmp_path / "elsewhere", entry=lambda one: one.replace("+", "+1", 1))  # another hash
    assert all(map(equal, answers(with_zeros(elsewhere)), expected))


def test_weights_packed_for_another_processor_are_logged(
    pair: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, packed = pair
    with caplog.at_level(logging.WARNING, "service"):
        for artifact in (plain, packed):
            answers(artifact)
            assert caplog.messages == []
        answers(changed(packed, tmp_path / "elsewhere", processor="an abacus, ONNX Runtime 0.1"))
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("the weights are packed for an abacus, ONNX Runtime 0.1; this is ")


def test_damaged_packed_weights_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    damaged = changed(pair[1], tmp_path / "damaged")
    shutil.copy(with_zeros(changed(pair[1], tmp_path / "zeros")) / "cpu" / WEIGHTS, damaged / "cpu")
    with pytest.raises(ManifestError, match=r"model\.onnx\.data is damaged: its SHA-256 is not the one in"):
        answers(damaged)


def test_a_graph_for_the_gpu_has_no_packed_weights(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="packed weights are for the CPU"):
        export(GOLDEN / "bert", tmp_path / "artifact", device="cuda", prepacked=True)
    assert not (tmp_path / "artifact").exists()
