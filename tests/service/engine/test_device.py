"""No silent fallback: a GPU that cannot be used stops the start or is reported; the trial of an artifact for CUDA."""

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import onnxruntime
import pytest
from httpx import AsyncClient

from packbert.model_export.artifact.manifest import MANIFEST
from packbert.model_export.export import export
from packbert.service.artifact import Artifact, ManifestError, open_artifact, read_artifact
from packbert.service.engine import device, session
from packbert.service.engine.calibration import golden_tokens, self_test
from packbert.service.engine.device import export_device, find_artifact, select_artifact, try_graph
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.session import CpuSession, CudaSession, runtime_fault
from packbert.service.errors import DeviceError
from packbert.service.http.app import create_app
from packbert.service.models import Models
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from tests.export.goldens import Exported
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_reversed_golden
from tests.service.engine.runners import PER_CORE, open_runner
from tests.service.fakes import on_loop, opened
from tests.service.in_process import client_of
from tests.serving import fail_to_serve

BERT = GOLDEN / "bert"


@pytest.fixture(scope="module")
def both(bert_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices") / "both"
    shutil.copytree(bert_artifact, folder)
    export(BERT, folder, device="cuda", precision="fp16")
    return folder


def test_cuda_that_cannot_be_used_stops_the_start(both: Path) -> None:
    finished = fail_to_serve({"BERT_MODEL": str(both), "BERT_DEVICE": "cuda"})
    assert finished.returncode == 2
    assert "BERT_DEVICE is cuda, but the GPU cannot be used: " in finished.stderr
    assert any(word in finished.stderr for word in ("driver", "library", "provider", "device is detected"))


def test_a_folder_with_only_a_gpu_artifact_names_the_export_to_run(both: Path, tmp_path: Path) -> None:
    shutil.copytree(both / "cuda", tmp_path / "artifact" / "cuda")
    for asked, fault in {
        "auto": "export one with --device cpu too",
        "cpu": "no artifact for cpu, only one for c",
    }.items():
        with pytest.raises((DeviceError, ManifestError), match=fault):
            select_artifact(tmp_path / "artifact", asked)


def test_an_artifact_is_neither_exported_nor_copied_to_a_cache(bert_artifact: Path) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError

    found = find_artifact(Settings(model=str(bert_artifact)), refuse)
    assert found.folder.parent == bert_artifact
    with pytest.raises(ManifestError, match="holds no artifact for cuda, only one for cpu: make one with `packbert ex"):
        find_artifact(Settings(model=str(bert_artifact), device="cuda"), refuse)


def cuda_runtime(code: int, gpus: int) -> Any:
    """A library linked with a CUDA runtime that answers `code` and counts `gpus`."""

    def count(into: Any) -> int:
        into._obj.value = gpus
        return code

    def say(code: int) -> bytes:
        return {35: b"CUDA driver version is insufficient for CUDA runtime version"}[code]

    return SimpleNamespace(cudaGetDeviceCount=count, cudaGetErrorString=say)


def test_a_driver_too_old_for_the_cuda_runtime_is_reported() -> None:
    fault = runtime_fault(cuda_runtime(35, 0))
    assert "answers with error 35: CUDA driver version is insufficient for CUDA runtime version" in fault
    assert runtime_fault(cuda_runtime(0, 0)) == "CUDA finds no GPU"
    assert runtime_fault(cuda_runtime(0, 1)) == ""


def test_the_memory_of_a_gpu_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 3 * 2**30, 80 * 2**30
        return 0

    def memory(**functions: Any) -> tuple[int, int] | None:
        monkeypatch.setattr(session, "_load_provider", lambda: SimpleNamespace(**functions))
        return session.device_memory()

    assert memory(cudaMemGetInfo=count) == (77 * 2**30, 80 * 2**30)
    assert memory(cudaMemGetInfo=lambda *_: 2) is None
    assert memory() is None


class InvalidOption:
    """The value of an option that no provider takes."""

    def __str__(self) -> str:
        raise ValueError("no such device")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_gpu_session_loads_the_libraries_of_wheels_and_does_not_fall_back_to_the_cpu(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default ONNX Runtime's Python would retry on the CPU, and raise that error."""
    loaded = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append("libraries"))
    with pytest.raises((ValueError, DeviceError), match=r"no such device|would not run on the GPU"):
        CudaSession(both / "cuda" / "model.onnx", {"device_id": InvalidOption()})  # type: ignore[dict-item]
    assert loaded


def test_the_self_test_covers_the_per_core_session(exported: Exported) -> None:
    """Each of the two sessions in turn is another model's."""
    bert, ernie = (open_runner(exported(name).root, concurrency=PER_CORE) for name in ("bert", "ernie"))
    with bert as faulty, ernie as other:
        assert self_test(faulty) > 0.99999
        faulty._per_core_session = other._per_core_session
        with pytest.raises(DeviceError, match="the self-test failed: cosine"):
            self_test(faulty)


@pytest.mark.parametrize(
    ("device", "driver", "fault", "chosen"),
    [
        ("cpu", True, "", "cpu"),
        ("auto", False, "", "cpu"),  # the system lists no driver: nothing is probed
        ("auto", True, "", "cuda"),
        ("auto", True, "no GPU", "cpu"),
        ("cuda", False, "", "cuda"),
    ],
)
def test_what_a_checkpoint_is_exported_for(
    device: str, driver: bool, fault: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nvidiactl"
    if driver:
        file.touch()
    monkeypatch.setattr("packbert.service.engine.device.GPU_FILES", (str(file),))
    monkeypatch.setattr("packbert.service.engine.device.CUDA_CHECK", f"print({fault!r})")
    assert export_device(device) == chosen


def test_nothing_is_exported_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packbert.service.engine.device.CUDA_CHECK", "print('no GPU')")
    with pytest.raises(DeviceError, match="BERT_DEVICE is cuda, but the GPU cannot be used: no GPU"):
        export_device("cuda")


class CpuAsCuda(CpuSession):
    provider = "CUDA"

    def __init__(self, model: Path) -> None:
        super().__init__(model, threads=1)


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
    rows = []
    for artifact in (read_artifact(folder, "cuda"), open_artifact(tmp_path / "artifact")):
        tokens = [golden_tokens(artifact.manifest, index) for index in (2, 0, 1)]
        with open_runner(artifact, threads=1) as runner:
            rows.append(np.concatenate([row["cls"] for row in runner.run_sync(tokens)[0] if row is not None]))
            assert self_test(runner) > 0.99999
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_a_trial_passes_a_right_graph_and_names_a_fault(folder: Path, tmp_path: Path) -> None:
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
    found = select_artifact(folder, "auto")
    assert (found.folder, found.degraded) == (folder / "cuda", "")


@pytest.mark.usefixtures("gpu")
def test_without_a_working_graph_the_cpu_serves_or_the_start_ends(
    folder: Path, bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "TRIAL", "print('no kernel')")
    for asked in ("cuda", "auto"):
        with pytest.raises(DeviceError, match="the GPU cannot be used: no kernel"):
            select_artifact(folder, asked)
    (tmp_path / "cuda").symlink_to(folder / "cuda")
    (tmp_path / "cpu").symlink_to(bert_artifact / "cpu")
    found = select_artifact(tmp_path, "auto")
    assert (found.manifest.device, found.degraded) == ("cpu", "no kernel")


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


@asynccontextmanager
async def asking(artifact: Artifact) -> AsyncIterator[AsyncClient]:
    """A client of a service that has the artifact."""
    settings = Settings(model=str(artifact.folder.parent), token_budget=64, threads=1)
    async with (
        opened(ModelEngine(artifact, settings, Metrics())) as engine,
        client_of(create_app(Models([engine]))) as client,
    ):
        yield client


@pytest.mark.usefixtures("gpu")
@on_loop
async def test_info_names_the_attention_of_an_artifact_for_cuda(folder: Path) -> None:
    async with asking(read_artifact(folder, "cuda")) as client:
        info = (await client.get("/info")).json()
        assert (info["device"], info["execution_provider"]) == ("cuda", "CUDA")
        assert (info["cuda_attention"], info["degraded"]) == ("plain", None)
        assert (await client.post("/embed", json={"inputs": "the cat"})).status_code == 200


@on_loop
async def test_a_cpu_instead_of_the_gpu_is_told_as_degraded(
    bert_artifact: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = open_artifact(bert_artifact)
    with caplog.at_level(logging.WARNING, "service"):
        for reason in ("", "no kernel"):
            found = replace(cpu, degraded=reason)
            monkeypatch.setattr(device, "find_artifact", lambda *_, found=found: found)
            device.find_artifacts([Settings(model=str(bert_artifact))])
    assert caplog.messages == ["DEGRADED: serving on the CPU, because the GPU cannot be used: no kernel"]
    async with asking(replace(cpu, degraded="no kernel")) as client:
        assert (await client.get("/ready")).json() == {"status": "ready", "degraded": "no kernel"}
        info = (await client.get("/info")).json()
        assert (info["cuda_attention"], info["degraded"]) == (None, "no kernel")
        assert "bert_degraded 1.0" in (await client.get("/metrics")).text
