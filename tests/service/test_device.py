"""No silent fallback: a GPU that was asked for and cannot be used stops the start; one that was hoped for leaves a loud trace."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from model_export.batch import Tokens
from model_export.export import export
from model_export.manifest import MANIFEST
from service.artifact import open_artifact
from service.errors import RunFailed
from service.plan import Plan
from service.runtime import Runtime
from service.session import DeviceError, cuda_fault
from tests.process import ServiceProcess

GOLDEN = Path(__file__).parent.parent / "golden" / "bert"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices") / "both"
    export(GOLDEN, folder, device="cpu")
    export(GOLDEN, folder, device="cuda", precision="fp16")
    return folder


@pytest.fixture
def runtime(both: Path) -> Iterator[Runtime]:
    opened = Runtime(open_artifact(both), threads=1)
    opened.open()
    yield opened
    opened.close()


def start(settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail; without a GPU in sight, whatever the machine has."""
    environment = {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": ""} | settings
    return subprocess.run([sys.executable, "-m", "service"], env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_cuda_that_cannot_be_used_stops_the_start_and_names_what_is_missing(both: Path) -> None:
    finished = start({"BERT_ARTIFACT": str(both), "BERT_DEVICE": "cuda"})
    assert finished.returncode == 2
    assert "BERT_DEVICE is cuda, but the GPU cannot be used: " in finished.stderr
    assert any(word in finished.stderr for word in ("driver", "library", "provider"))


def test_a_folder_for_the_gpu_alone_says_what_to_export(tmp_path: Path) -> None:
    export(GOLDEN, tmp_path / "artifact", device="cuda", precision="fp16")
    finished = start({"BERT_ARTIFACT": str(tmp_path / "artifact")})
    assert finished.returncode == 2
    assert "export one with --device cpu too" in finished.stderr
    asked = start({"BERT_ARTIFACT": str(tmp_path / "artifact"), "BERT_DEVICE": "cpu"})
    assert asked.returncode == 2
    assert "holds no artifact for cpu, only one for cuda" in asked.stderr


def test_auto_falls_back_loudly(both: Path) -> None:
    settings = {"BERT_ARTIFACT": str(both), "CUDA_VISIBLE_DEVICES": ""}
    with ServiceProcess(settings) as process, httpx.Client(base_url=process.url) as client:
        info = client.get("/info").json()
        assert info["device"] == "cpu"
        assert info["execution_provider"] == "CPU"
        assert info["degraded"]
        assert "bert_degraded 1.0" in client.get("/metrics").text
        process.terminate()
        assert "DEGRADED: serving on the CPU" in process.output()


def test_the_reason_is_a_sentence_or_nothing() -> None:
    fault = cuda_fault()
    assert fault == "" or len(fault) > 20


@pytest.mark.parametrize(("ids", "types"), [([-1], [0]), ([5000], [0]), ([5], [2]), ([5], [-1]), ([5] * 200, [0] * 200)])
def test_an_index_outside_its_table_never_reaches_the_device(runtime: Runtime, ids: list[int], types: list[int]) -> None:
    tokens = Tokens(ids=np.array(ids, np.int32), types=np.array(types, np.int32), outputs=frozenset({"cls"}))
    with pytest.raises(RunFailed, match="this model has 0 to"):
        runtime.run_here([tokens])


def test_the_self_test_passes_on_what_was_exported(runtime: Runtime) -> None:
    assert runtime.self_test() > 0.99999


def test_the_self_test_looks_at_the_session_of_the_lanes_too(tmp_path: Path) -> None:
    """Each of the two sessions in turn is another model's."""
    export(GOLDEN, tmp_path / "artifact")
    export(GOLDEN.with_name("ernie"), tmp_path / "other")
    opened = {name: Runtime(open_artifact(tmp_path / name), threads=2, plan=Plan(2, lanes=True)) for name in ("artifact", "other")}
    for runtime in opened.values():
        runtime.open()
    changed, other = opened["artifact"], opened["other"]
    assert changed.self_test() > 0.99999
    changed._lane_session = other._lane_session
    with pytest.raises(DeviceError, match="the self-test failed: cosine"):
        changed.self_test()
    for runtime in opened.values():
        runtime.close()


def test_the_self_test_fails_on_another_models_vectors(tmp_path: Path) -> None:
    export(GOLDEN, tmp_path / "artifact")
    manifest = tmp_path / "artifact" / "cpu" / MANIFEST
    content = json.loads(manifest.read_text("utf-8"))
    content["golden"][1]["cls"].reverse()
    manifest.write_text(json.dumps(content), "utf-8")
    changed = Runtime(open_artifact(tmp_path / "artifact"), threads=1)
    changed.open()
    with pytest.raises(DeviceError, match="the self-test failed: cosine"):
        changed.self_test()
    changed.close()
