"""Which of a CUDA artifact's two graphs runs, and what is said of it; a CPU takes the place of the GPU."""

import asyncio
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from packbert.model_export.artifact.manifest import MANIFEST, PLAIN
from packbert.model_export.export import export
from packbert.service.__main__ import _warn_of_device
from packbert.service.artifact import Artifact, ManifestError, open_artifact, read_artifact
from packbert.service.engine import device
from packbert.service.engine.calibration import golden_tokens, self_test
from packbert.service.engine.device import ArtifactChoice, select_artifact
from packbert.service.engine.local_backend import LocalBackend
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.session import CpuSession, runtime_capability
from packbert.service.engine.trial import try_graph, why_packed_refused
from packbert.service.errors import DeviceError
from packbert.service.http.app import create_app
from packbert.service.observability import Metrics
from packbert.service.settings import Settings
from packbert.service.workers.child import WorkerSpec
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_reversed_golden

TRIAL = "import sys; print(); print({{'packed': {!r}, 'plain': {!r}}}[sys.argv[2]])"  # the reasons of both graphs


class CpuAsCuda(CpuSession):
    provider = "CUDA"

    def __init__(self, model: Path) -> None:
        super().__init__(model, threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for CUDA alone."""
    made: Path = tmp_path_factory.mktemp("graphs") / "artifact"
    export(GOLDEN / "bert", made, device="cuda")
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packbert.service.engine.session.CudaSession", CpuAsCuda)
    monkeypatch.setattr(device, "PROBE", "print('')")


def test_an_artifact_for_cuda_without_its_plain_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "artifact")
    (tmp_path / "artifact" / "cuda" / PLAIN).write_bytes(b"another graph")
    with pytest.raises(ManifestError, match=r"plain.onnx is damaged"):
        open_artifact(tmp_path / "artifact", "cuda")


@pytest.mark.usefixtures("gpu")
def test_the_plain_graph_answers_as_the_artifact_for_the_cpu(folder: Path, bert_artifact: Path) -> None:
    plain, cpu = (
        ModelRunner(artifact, threads=1)
        for artifact in (read_artifact(folder, "cuda", plain=True), open_artifact(bert_artifact))
    )
    tokens = [golden_tokens(plain.artifact.manifest, index) for index in (2, 0, 1)]
    rows = []
    for runner in (plain, cpu):
        runner.open()
        rows.append(np.concatenate([row["cls"] for row in runner.run_sync(tokens)[0] if row is not None]))
        assert self_test(runner) > 0.99999
        runner.close()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_a_trial_passes_a_right_graph_and_names_what_is_wrong_with_another(folder: Path, tmp_path: Path) -> None:
    assert try_graph(folder, plain=True) == ""
    assert "PackedMultiHeadAttention" in try_graph(folder, plain=False)  # it has no kernel on the CPU
    assert "ManifestError" in try_graph(tmp_path, plain=True)
    (tmp_path / "cuda").mkdir()
    for file in (folder / "cuda").iterdir():
        (tmp_path / "cuda" / file.name).hardlink_to(file)
    (tmp_path / "cuda" / MANIFEST).unlink()
    with_reversed_golden(read_artifact(folder, "cuda").manifest).write(tmp_path / "cuda")
    assert "the self-test failed: cosine" in try_graph(tmp_path, plain=True)


@pytest.mark.parametrize(
    ("hidden", "heads", "capability", "reason"),
    [
        (768, 12, (7, 5), ""),
        (768, 12, (12, 0), ""),
        (768, 12, None, ""),
        (768, 12, (7, 0), "the card has compute capability 7.0, and packed attention needs 7.5"),
        (312, 12, (8, 0), "heads have 26 channels, and packed attention needs a multiple of 8 up to 256"),
        (1056, 4, (9, 0), "heads have 264 channels"),
    ],
)
def test_packed_attention_is_refused_where_its_kernels_are_not_for_the_card_or_the_model(
    folder: Path, hidden: int, heads: int, capability: tuple[int, int] | None, reason: str
) -> None:
    manifest = read_artifact(folder, "cuda").manifest
    manifest = dataclasses.replace(manifest, sizes={**manifest.sizes, "hidden": hidden, "heads": heads})
    refusal = why_packed_refused(manifest, capability)
    assert refusal.startswith(reason)
    assert bool(refusal) == bool(reason)


@pytest.mark.usefixtures("gpu")
def test_a_trial_does_not_run_a_refused_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packbert.service.engine.trial.compute_capability", lambda: (6, 1))
    assert "compute capability 6.1" in try_graph(folder, plain=False)
    assert try_graph(folder, plain=True) == ""


def test_the_compute_capability_is_what_the_runtime_says() -> None:
    def answer(into: Any, attribute: int, _: int) -> int:
        into._obj.value = {75: 8, 76: 6}[attribute]
        return 0

    assert runtime_capability(SimpleNamespace(cudaDeviceGetAttribute=answer)) == (8, 6)
    assert runtime_capability(SimpleNamespace(cudaDeviceGetAttribute=lambda *_: 100)) is None
    assert runtime_capability(SimpleNamespace()) is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("packed", "plain", "runs_plain", "degraded"),
    [
        ("", "", False, ""),
        ("", "wrong", False, ""),
        ("no kernel", "", True, "plain attention is used, because packed attention cannot be: no kernel"),
    ],
)
def test_the_graph_that_runs_is_the_first_that_passes_its_trial(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    packed: str,
    plain: str,
    runs_plain: bool,
    degraded: str,
) -> None:
    monkeypatch.setattr(device, "TRIAL", TRIAL.format(packed, plain))
    choice = select_artifact(folder, "auto")
    assert choice == ArtifactChoice(Artifact(folder / "cuda", choice.artifact.manifest, runs_plain), degraded)
    assert choice.artifact.model.name == ("plain.onnx" if runs_plain else "model.onnx")


@pytest.mark.usefixtures("gpu")
def test_without_a_graph_that_works_the_cpu_serves_or_the_start_ends_with_both_reasons(
    folder: Path, bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "TRIAL", TRIAL.format("no kernel", "wrong"))
    both = "packed attention: no kernel; plain attention: wrong"
    for asked in ("cuda", "auto"):
        with pytest.raises(DeviceError, match=f"the GPU cannot be used: {both}"):
            select_artifact(folder, asked)
    (tmp_path / "cuda").symlink_to(folder / "cuda")
    (tmp_path / "cpu").symlink_to(bert_artifact / "cpu")
    choice = select_artifact(tmp_path, "auto")
    assert (choice.artifact.manifest.device, choice.degraded) == ("cpu", both)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("raise SystemExit('an illegal memory access')", "ended with exit code 1: an illegal memory access"),
        ("import sys; sys.stdin.read()", "has not ended after 0.5 s"),
    ],
)
def test_a_trial_that_crashes_or_hangs_counts_as_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    monkeypatch.setattr(device, "TRIAL_SECONDS", 0.5 if "stdin" in program else 60.0)
    monkeypatch.setattr(device, "TRIAL", f"import sys\nif sys.argv[2] == 'packed':\n    {program}\nprint()")
    choice = select_artifact(folder, "auto")
    assert choice.artifact.plain
    assert reason in choice.degraded


def test_a_trial_ends_with_the_process_that_started_it() -> None:
    read_end, write_end = os.pipe()
    program = "from packbert.service.engine.trial import _end_with_parent; _end_with_parent()"
    trial = subprocess.Popen([sys.executable, "-c", program], stdin=read_end)
    os.close(read_end)
    assert trial.poll() is None
    os.close(write_end)
    assert trial.wait(timeout=60) == 1


def test_a_worker_opens_the_graph_that_the_supervisor_chose(folder: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    for plain, name in ((True, "plain.onnx"), (False, "model.onnx")):
        spec = WorkerSpec(
            name="engine",
            folder=str(tmp_path),
            artifact=str(folder),
            device="cuda",
            plain=plain,
            degraded="",
            listener=read_end,
            lifeline=read_end,
            heartbeat=write_end,
        )
        assert msgspec.json.decode(spec.argument, type=WorkerSpec) == spec
        program = (
            "from packbert.service.workers.child import run_child; run_child(lambda _, __, a: print(a.model.name) or 0)"
        )
        finished = subprocess.run(
            [sys.executable, "-c", program, spec.argument],
            env={"BERT_ARTIFACT": str(folder)},
            pass_fds=[read_end, write_end],
            capture_output=True,
            text=True,
            check=True,
        )
        assert finished.stdout.strip() == name
    os.close(read_end)
    os.close(write_end)


@pytest.mark.usefixtures("gpu")
def test_plain_attention_in_place_of_packed_is_degraded_in_ready_info_and_metrics(folder: Path) -> None:
    settings, artifact = (
        Settings(artifact=folder, token_budget=64, threads=1),
        read_artifact(folder, "cuda", plain=True),
    )

    async def story() -> None:
        backend = LocalBackend(artifact, settings, Metrics(), degraded="no kernel")
        await backend.open()
        transport = httpx.ASGITransport(create_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/ready")).json() == {"status": "ready", "degraded": "no kernel"}
            info = (await client.get("/info")).json()
            assert (info["device"], info["execution_provider"]) == ("cuda", "CUDA")
            assert (info["cuda_attention"], info["degraded"]) == ("plain", "no kernel")
            assert "bert_degraded 1.0" in (await client.get("/metrics")).text
            assert (await client.post("/embed", json={"inputs": "the cat"})).status_code == 200
        await backend.close()

    asyncio.run(story())


def test_the_log_says_what_is_degraded(folder: Path, bert_artifact: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, cpu = read_artifact(folder, "cuda", plain=True), open_artifact(bert_artifact)
    with caplog.at_level(logging.WARNING, "service"):
        _warn_of_device(ArtifactChoice(cpu))
        _warn_of_device(ArtifactChoice(plain))
        assert not caplog.messages
        _warn_of_device(ArtifactChoice(plain, "no kernel"))
        _warn_of_device(ArtifactChoice(cpu, "no driver"))
    assert caplog.messages == [
        "DEGRADED: no kernel",
        "DEGRADED: serving on the CPU, because the GPU cannot be used: no driver",
    ]
