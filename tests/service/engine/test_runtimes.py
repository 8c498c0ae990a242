"""The runtime of an fp32 encoder: what OpenVINO answers, the measurement, and the choice that is kept."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from packbert.model_export.__main__ import main as export_command
from packbert.model_export.artifact import manifest
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine import runtimes
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.runtimes import CHOICE, ONNX_RUNTIME, OPENVINO, RuntimeChoice, choose_runtime, made_for
from packbert.service.engine.tune import BATCHES, FASTER, tune
from packbert.service.library.tune_command import main as tune_command
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from tests.e2e.test_neighbours import equal, own_candidates, sequences
from tests.export.goldens import distance, expected
from tests.export.test_families import HEADS, compute
from tests.paths import GOLDEN
from tests.service.scheduling.serving import submit

FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra-labels", "deberta-v2-tags", "jina_bert", "mpnet")


def on_openvino(artifact: Artifact) -> ModelRunner:
    runner = ModelRunner(artifact, threads=2)
    runner.openvino = True
    runner.open()
    return runner


@pytest.fixture
def artifact(exported: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A copy of the golden BERT, which counts as large."""
    monkeypatch.setattr(runtimes, "LEAST_BYTES", 0)
    shutil.copytree(exported("bert").folder, tmp_path / "artifact" / "cpu")
    return open_artifact(tmp_path / "artifact")


def choice_for(artifact: Artifact, runtime: str = OPENVINO, threads: int = 2) -> RuntimeChoice:
    times = {"one text of 16 tokens": {ONNX_RUNTIME: 10.0, OPENVINO: 8.0}}
    return RuntimeChoice(runtime=runtime, reason="measured", milliseconds=times, **made_for(artifact, threads))


@pytest.mark.parametrize("name", FAMILIES)
def test_openvino_answers_in_fp32_as_transformers_does(name: str, exported: Callable) -> None:
    runner, golden = on_openvino(open_artifact(exported(name).root)), expected(name)
    openvino: Any = SimpleNamespace(manifest=runner.artifact.manifest, run=lambda texts: runner.run_sync(texts)[0])
    found = compute(openvino, golden)
    heads = {head for head in HEADS if head in golden[0]}
    assert heads
    for got, want in zip(found, golden, strict=True):
        assert set(got) == heads
        assert all(distance(got[head], want[head]) <= 1 for head in heads)
    assert runner.provider == "OpenVINO"
    runner.close()


def test_what_is_chosen_has_the_same_answers_in_any_company(artifact: Artifact) -> None:
    """Where the measurement found them changed (on AVX2), OpenVINO is refused."""
    found = tune(artifact, 2)
    if not found.milliseconds:
        assert found.runtime == ONNX_RUNTIME
        assert found.reason == "OpenVINO cannot run it: its answer for a text changes with the other texts of the batch"
        return
    assert set(found.milliseconds) == set(BATCHES)
    ratios = [one[OPENVINO] / one[ONNX_RUNTIME] for one in found.milliseconds.values()]
    assert (found.runtime == OPENVINO) == (np.prod(ratios) ** (1 / len(ratios)) <= FASTER)
    runner = on_openvino(artifact)
    texts = sequences(artifact.manifest.sizes["vocabulary"], artifact.manifest.max_tokens)
    alone = [runner.run_sync([text])[0][0] for text in texts]
    for batch in np.array_split(np.random.default_rng(8).permutation(len(texts)), 4):
        rows, _ = runner.run_sync([texts[i] for i in batch])
        for i, row in zip(batch, rows, strict=True):
            assert equal(own_candidates(texts[i], row), own_candidates(texts[i], alone[i])), len(texts[i])
    runner.close()


def test_a_graph_that_openvino_cannot_read_stays_with_onnx_runtime(exported: Callable) -> None:
    found = tune(open_artifact(exported("modernbert").root), 1)
    assert found.runtime == ONNX_RUNTIME
    assert found.reason.startswith("OpenVINO cannot run it: ")


def test_the_first_start_measures_and_the_next_ones_read_the_choice(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = choose_runtime(artifact, 2, measures=True)
    assert first is not None
    assert first.milliseconds or "changes with the other texts" in first.reason
    assert RuntimeChoice(**json.loads((artifact.folder / CHOICE).read_text("utf-8"))) == first
    monkeypatch.setattr(runtimes, "TUNING", ("-c", "raise SystemExit(3)"))
    assert choose_runtime(artifact, 2, measures=True) == first
    assert open_artifact(artifact.folder.parent).digest == artifact.digest


def test_a_start_does_not_measure_a_small_model_but_reads_its_choice(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "LEAST_BYTES", 2**27)
    assert choose_runtime(artifact, 2, measures=True) is None
    choice_for(artifact).keep(artifact)
    assert choose_runtime(artifact, 2, measures=True) == choice_for(artifact)


@pytest.mark.parametrize("change", [{"threads": 1}, {"machine": "another"}, {"digest": "0"}, {"unknown": 1}, None])
def test_a_choice_of_something_else_is_not_used(artifact: Artifact, change: dict[str, object] | None) -> None:
    choice_for(artifact).keep(artifact)
    assert choose_runtime(artifact, 2, measures=False) == choice_for(artifact)
    path = artifact.folder / CHOICE
    content = json.loads(path.read_text("utf-8"))
    path.write_text("{" if change is None else json.dumps(content | change), "utf-8")
    assert choose_runtime(artifact, 2, measures=False) is None


def test_a_measurement_that_crashes_leaves_onnx_runtime_and_is_not_repeated(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "TUNING", ("-c", "raise SystemExit('an illegal instruction')"))
    found = choose_runtime(artifact, 2, measures=True)
    assert found is not None
    assert found.runtime == ONNX_RUNTIME
    assert found.reason == "the measurement has not ended: exit code 1: an illegal instruction"
    monkeypatch.setattr(runtimes, "TUNING", ("-c", "raise SystemExit('run again')"))
    assert choose_runtime(artifact, 2, measures=True) == found


def test_without_openvino_or_in_another_precision_there_is_no_choice(
    artifact: Artifact, exported: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtimes.why_no_choice(artifact) == ""
    assert "in int8 on cpu is given" in runtimes.why_no_choice(open_artifact(exported("bert", "int8").root))
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    assert "the extra openvino" in runtimes.why_no_choice(artifact)
    choice_for(artifact).keep(artifact)
    assert choose_runtime(artifact, 2, measures=True) is None


def test_packed_weights_are_for_onnx_runtime_alone(tmp_path: Path) -> None:
    assert export_command([str(GOLDEN / "bert"), str(tmp_path / "packed"), "--prepacked"]) == 0
    packed = open_artifact(tmp_path / "packed")
    assert manifest.HEADS not in packed.manifest.files
    assert manifest.LAYERS in packed.manifest.files
    assert f"the artifact has no {manifest.HEADS}" in runtimes.why_no_choice(packed)


@pytest.mark.parametrize(("setting", "provider"), [("auto", "OpenVINO"), ("onnxruntime", "CPU")])
def test_a_start_follows_the_kept_choice_unless_the_setting_says_otherwise(
    setting: str, provider: str, artifact: Artifact
) -> None:
    choice_for(artifact, threads=1).keep(artifact)
    settings = Settings(artifact=artifact.folder.parent, threads=1, runtime=setting)

    async def info() -> dict[str, object]:
        engine = ModelEngine(artifact, settings, Metrics())
        await engine.open()
        try:
            work = sequences(artifact.manifest.sizes["vocabulary"], 40)[:3]
            request = await submit(engine.batcher, work, timeout_seconds=60.0)
            assert None not in request.rows
            return engine.info()
        finally:
            await engine.close()

    found = asyncio.run(info())
    assert found["execution_provider"] == provider
    tuning = found["tuning"]
    assert (tuning is None) == (setting != "auto")
    assert ("openvino" in found["versions"]) == (provider == "OpenVINO")  # type: ignore[operator]


def test_states_of_layers_and_attention_are_those_of_onnx_runtime_within_fp32(artifact: Artifact) -> None:
    text = sequences(artifact.manifest.sizes["vocabulary"], 40)[20]
    text.outputs, text.layers = frozenset({"layer_tokens", "attention"}), (0, 1)
    rows = []
    for openvino in (False, True):
        runner = ModelRunner(artifact, threads=1)
        runner.openvino = openvino
        runner.open()
        rows.append(runner.run_sync([text])[0][0] or {})
        runner.close()
    for name in text.outputs:
        assert distance(rows[1][name], rows[0][name]) <= 1, name


def test_the_command_prints_the_times_and_keeps_the_choice(
    artifact: Artifact, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_THREADS", "2")
    assert tune_command([str(artifact.folder.parent)]) == 0
    shown = capsys.readouterr().out
    kept = RuntimeChoice.kept(artifact, 2)
    assert kept is not None
    assert shown.endswith(f"{kept.runtime}, because {kept.reason}; kept in {artifact.folder / CHOICE}\n")
    assert all(batch in shown for batch in kept.milliseconds)


def test_the_command_says_why_there_is_nothing_to_choose(
    exported: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune_command([str(exported("bert", "int8").root)]) == 2
    assert "packbert tune: the runtime of an artifact in int8 on cpu is given" in capsys.readouterr().err
