"""An artifact in bf16: the encoder in OpenVINO, the heads in ONNX Runtime, and a start that is refused elsewhere."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.__main__ import main
from packbert.model_export.artifact import cpu
from packbert.model_export.artifact.batch import LAST, Tokens, pack
from packbert.model_export.artifact.manifest import BF16_ROWS, HEADS, LAYERS, ManifestError
from packbert.model_export.artifact.openvino import STATES, OpenVinoEncoder, to_bf16
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.device import select_artifact
from packbert.service.engine.engine import concurrency_for
from packbert.service.engine.info import engine_info
from packbert.service.engine.memory import mappings_of
from packbert.service.engine.runner import ModelRunner
from packbert.service.errors import DeviceError
from packbert.service.model_cache import ModelError
from packbert.service.prepare import find_model
from packbert.service.scheduling.cores import SERIAL, Concurrency
from packbert.service.settings import Settings
from tests.export.goldens import Exported
from tests.paths import GOLDEN
from tests.service.engine.runners import PER_CORE, open_runner

HAS_BF16, HAS_NOT = {"avx512_bf16"}, {"avx2", "avx512_vnni"}


@pytest.fixture(scope="module")
def artifact(exported: Exported) -> Artifact:
    return open_artifact(exported("bert", "bf16").root)


@pytest.fixture(scope="module")
def runner(artifact: Artifact) -> Iterator[ModelRunner]:
    with open_runner(artifact, concurrency=PER_CORE) as runner:
        yield runner


def test_the_manifest_says_how_much_company_changes_an_answer(artifact: Artifact, bert_artifact: Path) -> None:
    recorded = (artifact.manifest.verification, open_artifact(bert_artifact).manifest.verification)  # bf16, fp32
    assert ["company_max_abs_change" in one for one in recorded] == [True, False]


def text(length: int, *outputs: str, layers: tuple[int, ...] = ()) -> Tokens:
    ids = np.random.default_rng(length).integers(5, 60, length, dtype=np.int32)
    return Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset(outputs), layers=layers)


def test_the_vectors_are_those_of_fp32_within_the_bound(runner: ModelRunner, exported: Exported) -> None:
    with open_runner(exported("bert").root, threads=1) as exact:
        for length in (2, 17, 64, 140):
            work = [text(length, "cls", "mean", "layer_tokens", layers=(0, 2, LAST))]
            ((row,), _), ((want,), _) = runner.run_sync(work), exact.run_sync(work)
            assert row is not None
            assert want is not None
            for name, values in want.items():
                got, expected = (one[name].astype(np.float64) for one in (row, want))
                cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
                assert cosines.min() > 0.9998, (name, length)
                assert values.shape == got.shape


def test_what_runs_it_is_named(runner: ModelRunner, artifact: Artifact) -> None:
    assert runner.provider == "OpenVINO"
    info = engine_info(artifact, Settings(model=str(artifact.folder.parent)), runner.provider)
    assert (info["precision"], info["execution_provider"]) == ("bf16", "OpenVINO")
    assert info["versions"]["openvino"][:2] == "20"


def test_the_encoder_holds_its_weights_itself_and_computes_the_last_states_alone(artifact: Artifact) -> None:
    encoder = OpenVinoEncoder(artifact.folder / LAYERS, all_layers=False, threads=1)
    assert encoder.outputs == (STATES,)
    assert mappings_of(artifact.weights) == []


def test_a_thread_that_opens_it_still_computes_with_denormals(artifact: Artifact) -> None:
    encoder = OpenVinoEncoder(artifact.folder / LAYERS, all_layers=False, threads=1)
    encoder.run([STATES], pack([text(5, "cls")], BF16_ROWS).feeds)
    assert np.finfo(np.float64).tiny / np.float64(4) > 0


def test_threads_at_once_get_the_answers_of_one(artifact: Artifact) -> None:
    encoder = OpenVinoEncoder(artifact.folder / LAYERS, all_layers=False, threads=1, streams=3)
    batches = [pack([text(length, "cls") for length in lengths], BF16_ROWS) for lengths in ([5], [9, 40], [140, 3, 3])]
    expected = [encoder.run([STATES], batch.feeds)[STATES] for batch in batches]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda i: encoder.run([STATES], batches[i % 3].feeds)[STATES], range(60)))
    assert all(np.array_equal(one, expected[i % 3]) for i, one in enumerate(found))


def test_weights_are_rounded_to_the_nearest_and_to_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF807FFF], np.uint32)
    assert to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF80]


@pytest.mark.parametrize(
    ("flags", "runtime", "reason"),
    [
        (HAS_NOT, "openvino", "this processor has neither AVX512-BF16 nor AMX, which bf16 needs: use fp32 or int8"),
        (HAS_BF16, "not_installed", "OpenVINO is not installed, which runs bf16: install packbert with the extra open"),
    ],
)
def test_without_the_processor_or_the_package_it_is_refused(
    flags: set[str],
    runtime: str,
    reason: str,
    artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: flags)
    monkeypatch.setattr(cpu, "BF16_RUNTIME", runtime)
    with pytest.raises(DeviceError, match="is an artifact in bf16, but ") as refused:  # the start of the service
        select_artifact(artifact.folder.parent, "cpu")
    assert reason in str(refused.value)
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "bf16"]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "artifact").exists()
    with pytest.raises(ModelError) as refused_model:
        find_model(Settings(model=str(GOLDEN / "bert"), precision="bf16"))
    assert reason in str(refused_model.value)


def test_with_both_it_is_selected(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: HAS_BF16)
    chosen = select_artifact(artifact.folder.parent, "auto")
    assert chosen.manifest.precision == "bf16"
    assert concurrency_for(chosen, 2) == Concurrency(2, per_core=True)  # small
    sizes = {**chosen.manifest.sizes, "parameters": 110_000_000}
    large = dataclasses.replace(chosen, manifest=dataclasses.replace(chosen.manifest, sizes=sizes))
    assert concurrency_for(large, 2) == SERIAL  # a second copy of packed weights would exceed the memory of fp32


def test_packed_weights_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "bf16", "--prepacked"]) == 2
    assert "prepacked weights are for ONNX Runtime, and OpenVINO runs bf16: omit --prepacked" in capsys.readouterr().err


def test_an_artifact_without_the_graph_of_its_heads_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = exported("bert", "bf16").folder
    (tmp_path / "cpu").mkdir()
    for path in folder.iterdir():
        if path.name != HEADS:
            (tmp_path / "cpu" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ManifestError, match=r"heads\.onnx is missing: export the checkpoint again"):
        open_artifact(tmp_path)
