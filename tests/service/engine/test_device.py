"""No silent fallback: BERT_DEVICE=cuda without a usable GPU stops the start; auto warns and serves on the CPU."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import numpy as np
import onnxruntime
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.export import export
from packbert.service.artifact import ManifestError, open_artifact
from packbert.service.engine.calibration import self_test
from packbert.service.engine.device import export_device, find_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.session import CudaSession, runtime_fault, runtime_memory, why_cuda_unavailable
from packbert.service.errors import DeviceError, InferenceFailed
from packbert.service.scheduling.cores import Concurrency
from packbert.service.settings import Settings
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_reversed_golden
from tests.serving import fail_to_serve

BERT = GOLDEN / "bert"


@pytest.fixture(scope="module")
def both(bert_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices") / "both"
    shutil.copytree(bert_artifact, folder)
    export(BERT, folder, device="cuda", precision="fp16")
    return folder


@pytest.fixture
def runner(both: Path) -> Iterator[ModelRunner]:
    opened = ModelRunner(open_artifact(both), threads=1)
    opened.open()
    yield opened
    opened.close()


def test_cuda_that_cannot_be_used_stops_the_start_and_names_what_is_missing(both: Path) -> None:
    finished = fail_to_serve({"BERT_MODEL": str(both), "BERT_DEVICE": "cuda"})
    assert finished.returncode == 2
    assert "BERT_DEVICE is cuda, but the GPU cannot be used: " in finished.stderr
    assert any(word in finished.stderr for word in ("driver", "library", "provider", "device is detected"))


def test_a_folder_with_only_a_gpu_artifact_names_the_export_to_run(both: Path, tmp_path: Path) -> None:
    shutil.copytree(both / "cuda", tmp_path / "artifact" / "cuda")
    finished = fail_to_serve({"BERT_MODEL": str(tmp_path / "artifact")})
    assert finished.returncode == 2
    assert "export one with --device cpu too" in finished.stderr
    explicit = fail_to_serve({"BERT_MODEL": str(tmp_path / "artifact"), "BERT_DEVICE": "cpu"})
    assert explicit.returncode == 2
    assert "holds no artifact for cpu, only one for cuda" in explicit.stderr


def test_an_artifact_is_neither_exported_nor_copied_to_a_cache(bert_artifact: Path) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError

    found = find_artifact(Settings(model=str(bert_artifact)), refuse).artifact
    assert found.folder.parent == bert_artifact
    with pytest.raises(ManifestError, match="holds no artifact for cuda, only one for cpu: make one with `packbert ex"):
        find_artifact(Settings(model=str(bert_artifact), device="cuda"), refuse)


def test_auto_falls_back_to_the_cpu_with_a_warning(both: Path) -> None:
    settings = {"BERT_MODEL": str(both), "CUDA_VISIBLE_DEVICES": ""}
    with ServiceProcess(settings) as process, httpx.Client(base_url=process.url) as client:
        info = client.get("/info").json()
        assert info["device"] == "cpu"
        assert info["execution_provider"] == "CPU"
        assert info["degraded"]
        assert "bert_degraded 1.0" in client.get("/metrics").text
        process.terminate()
        assert "DEGRADED: serving on the CPU" in process.output()


def test_the_reason_is_a_sentence_or_empty() -> None:
    fault = why_cuda_unavailable()
    assert fault == "" or len(fault) > 20


def cuda_runtime(code: int, gpus: int) -> Any:
    """A library linked with a CUDA runtime that answers `code` and counts `gpus`."""

    def count(into: Any) -> int:
        into._obj.value = gpus
        return code

    def say(code: int) -> bytes:
        return {35: b"CUDA driver version is insufficient for CUDA runtime version"}[code]

    return SimpleNamespace(cudaGetDeviceCount=count, cudaGetErrorString=say)


def test_a_driver_too_old_for_the_cuda_runtime_is_reported_with_its_message() -> None:
    fault = runtime_fault(cuda_runtime(35, 0))
    assert "answers with error 35: CUDA driver version is insufficient for CUDA runtime version" in fault
    assert runtime_fault(cuda_runtime(0, 0)) == "CUDA finds no GPU"
    assert runtime_fault(cuda_runtime(0, 1)) == ""


def test_the_memory_of_a_gpu_is_what_its_runtime_does_not_have_free() -> None:
    def count(free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 3 * 2**30, 80 * 2**30
        return 0

    assert runtime_memory(SimpleNamespace(cudaMemGetInfo=count)) == (77 * 2**30, 80 * 2**30)
    assert runtime_memory(SimpleNamespace(cudaMemGetInfo=lambda *_: 2)) is None
    assert runtime_memory(SimpleNamespace()) is None


class InvalidOption:
    """The value of an option that no provider takes."""

    def __str__(self) -> str:
        raise ValueError("no such device")


# of ONNX Runtime with the provider, and of the package for the CPU, which warns and runs without it
NO_GPU = pytest.raises((ValueError, DeviceError), match=r"no such device|would not run on the GPU")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_failing_gpu_provider_does_not_fall_back_to_the_cpu(both: Path) -> None:
    """By default ONNX Runtime's Python would retry on the CPU, and raise that error."""
    with NO_GPU:
        CudaSession(both / "cuda" / "model.onnx", {"device_id": InvalidOption()})  # type: ignore[dict-item]


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_opening_a_gpu_session_loads_the_libraries_of_wheels(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With API processes, the supervisor chooses the GPU and the engine opens the session."""
    loaded = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append("libraries"))
    with NO_GPU:
        CudaSession(both / "cuda" / "model.onnx", {"device_id": InvalidOption()})  # type: ignore[dict-item]
    assert loaded


@pytest.mark.parametrize(
    ("ids", "types"), [([-1], [0]), ([5000], [0]), ([5], [2]), ([5], [-1]), ([5] * 200, [0] * 200)]
)
def test_an_index_outside_its_table_never_reaches_the_device(
    runner: ModelRunner, ids: list[int], types: list[int]
) -> None:
    tokens = Tokens(ids=np.array(ids, np.int32), types=np.array(types, np.int32), outputs=frozenset({"cls"}))
    with pytest.raises(InferenceFailed, match="this model has 0 to"):
        runner.run_sync([tokens])


def test_the_self_test_passes_on_an_exported_artifact(runner: ModelRunner) -> None:
    assert self_test(runner) > 0.99999


def test_the_self_test_covers_the_per_core_session(exported: Callable) -> None:
    """Each of the two sessions in turn is another model's."""
    opened = {
        name: ModelRunner(open_artifact(exported(name).root), threads=2, concurrency=Concurrency(2, per_core=True))
        for name in ("bert", "ernie")
    }
    for runner in opened.values():
        runner.open()
    changed, other = opened["bert"], opened["ernie"]
    assert self_test(changed) > 0.99999
    changed._per_core_session = other._per_core_session
    with pytest.raises(DeviceError, match="the self-test failed: cosine"):
        self_test(changed)
    for runner in opened.values():
        runner.close()


def test_the_self_test_fails_on_another_models_vectors(bert_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(bert_artifact, tmp_path / "artifact")
    with_reversed_golden(open_artifact(bert_artifact).manifest).write(tmp_path / "artifact" / "cpu")
    changed = ModelRunner(open_artifact(tmp_path / "artifact"), threads=1)
    changed.open()
    with pytest.raises(DeviceError, match="the self-test failed: cosine"):
        self_test(changed)
    changed.close()


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
