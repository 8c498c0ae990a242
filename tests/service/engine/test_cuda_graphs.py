"""The trial of an artifact for CUDA, and what serves where it fails; a CPU takes the place of the GPU."""

import asyncio
import json
import logging
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

from packbert.model_export.artifact.manifest import MANIFEST
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact, read_artifact
from packbert.service.backend import Backend
from packbert.service.engine import device
from packbert.service.engine.calibration import golden_tokens, self_test
from packbert.service.engine.device import ArtifactChoice, select_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.session import CpuSession
from packbert.service.engine.trial import try_graph
from packbert.service.errors import DeviceError
from packbert.service.http.app import create_app
from packbert.service.models import Models
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_reversed_golden


class CpuAsCuda(CpuSession):
    provider = "CUDA"

    def __init__(self, model: Path) -> None:
        super().__init__(model, threads=1)


@pytest.fixture(scope="module")
def narrow_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with eight heads of 4 channels: its graph for CUDA also runs on a CPU."""
    folder: Path = tmp_path_factory.mktemp("narrow") / "checkpoint"
    shutil.copytree(GOLDEN / "bert", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8}), "utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(narrow_heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for CUDA alone."""
    made: Path = tmp_path_factory.mktemp("graphs") / "artifact"
    export(narrow_heads, made, device="cuda")
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packbert.service.engine.session.CudaSession", CpuAsCuda)
    monkeypatch.setattr(device, "CUDA_CHECK", "print('')")


@pytest.mark.usefixtures("gpu")
def test_a_graph_for_cuda_answers_as_the_artifact_for_the_cpu(folder: Path, narrow_heads: Path, tmp_path: Path) -> None:
    export(narrow_heads, tmp_path / "artifact")
    cuda, cpu = (
        ModelRunner(artifact, threads=1)
        for artifact in (read_artifact(folder, "cuda"), open_artifact(tmp_path / "artifact"))
    )
    tokens = [golden_tokens(cuda.artifact.manifest, index) for index in (2, 0, 1)]
    rows = []
    for runner in (cuda, cpu):
        runner.open()
        rows.append(np.concatenate([row["cls"] for row in runner.run_sync(tokens)[0] if row is not None]))
        assert self_test(runner) > 0.99999
        runner.close()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_a_trial_passes_a_right_graph_and_names_what_is_wrong_with_another(folder: Path, tmp_path: Path) -> None:
    assert try_graph(folder) == ""
    export(GOLDEN / "bert", tmp_path / "packed", device="cuda")
    assert "PackedMultiHeadAttention" in try_graph(tmp_path / "packed")  # it has no kernel on the CPU
    assert "ManifestError" in try_graph(tmp_path)
    (tmp_path / "cuda").mkdir()
    for file in (folder / "cuda").iterdir():
        (tmp_path / "cuda" / file.name).hardlink_to(file)
    (tmp_path / "cuda" / MANIFEST).unlink()
    with_reversed_golden(read_artifact(folder, "cuda").manifest).write(tmp_path / "cuda")
    assert "the self-test failed: cosine" in try_graph(tmp_path)


@pytest.mark.usefixtures("gpu")
def test_a_graph_that_passes_its_trial_is_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "TRIAL", "import sys; print(sys.argv[1]); print()")
    choice = select_artifact(folder, "auto")
    assert (choice.artifact.folder, choice.degraded) == (folder / "cuda", "")


@pytest.mark.usefixtures("gpu")
def test_without_a_graph_that_works_the_cpu_serves_or_the_start_ends_with_the_reason(
    folder: Path, bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "TRIAL", "print('no kernel')")
    for asked in ("cuda", "auto"):
        with pytest.raises(DeviceError, match="the GPU cannot be used: no kernel"):
            select_artifact(folder, asked)
    (tmp_path / "cuda").symlink_to(folder / "cuda")
    (tmp_path / "cpu").symlink_to(bert_artifact / "cpu")
    choice = select_artifact(tmp_path, "auto")
    assert (choice.artifact.manifest.device, choice.degraded) == ("cpu", "no kernel")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("raise SystemExit('an illegal memory access')", "ended with exit code 1: an illegal memory access"),
        ("import signal; signal.pause()", "has not ended after 0.5 s"),
    ],
)
def test_a_trial_that_crashes_or_hangs_counts_as_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    monkeypatch.setattr(device, "TRIAL_SECONDS", 0.5 if "pause" in program else 60.0)
    monkeypatch.setattr(device, "TRIAL", program)
    with pytest.raises(DeviceError, match=reason):
        select_artifact(folder, "auto")


@pytest.mark.usefixtures("gpu")
def test_info_names_the_attention_of_an_artifact_for_cuda(folder: Path) -> None:
    settings = Settings(model=str(folder), token_budget=64, threads=1)

    async def story() -> None:
        backend = Backend(read_artifact(folder, "cuda"), settings, Metrics())
        await backend.open()
        transport = httpx.ASGITransport(create_app(Models([backend])))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            info = (await client.get("/info")).json()
            assert (info["device"], info["execution_provider"]) == ("cuda", "CUDA")
            assert (info["cuda_attention"], info["degraded"]) == ("plain", None)
            assert (await client.post("/embed", json={"inputs": "the cat"})).status_code == 200
        await backend.close()

    asyncio.run(story())


def test_a_cpu_in_place_of_the_gpu_is_degraded_in_the_log_ready_info_and_metrics(
    bert_artifact: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = open_artifact(bert_artifact)
    with caplog.at_level(logging.WARNING, "service"):
        for reason in ("", "no kernel"):
            found = ArtifactChoice(cpu, reason)
            monkeypatch.setattr(device, "find_artifact", lambda *_, found=found: found)
            device.find_artifacts([Settings(model=str(bert_artifact))])
    assert caplog.messages == ["DEGRADED: serving on the CPU, because the GPU cannot be used: no kernel"]
    settings = Settings(model=str(bert_artifact), token_budget=64, threads=1)

    async def story() -> None:
        backend = Backend(cpu, settings, Metrics(), degraded="no kernel")
        await backend.open()
        transport = httpx.ASGITransport(create_app(Models([backend])))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/ready")).json() == {"status": "ready", "degraded": "no kernel"}
            info = (await client.get("/info")).json()
            assert (info["cuda_attention"], info["degraded"]) == (None, "no kernel")
            assert "bert_degraded 1.0" in (await client.get("/metrics")).text
        await backend.close()

    asyncio.run(story())
