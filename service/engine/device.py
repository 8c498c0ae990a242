"""What this machine runs: which of a folder's artifacts, and how batches share the device.

Imports ONNX Runtime only in child processes, before a model is loaded.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from packbert.model_export.artifact.cpu import BF16, why_bf16_unavailable
from packbert.model_export.artifact.lifeline import end_with

from ..artifact import Artifact, ManifestError, available, open_artifact, read_artifact
from ..errors import DeviceError
from ..model_cache import Source
from ..prepare import find_model, is_hub_id, prepare_model
from ..settings import Settings
from ..tasks.defaults import describe_defaults

CUDA_CHECK = f"from {__package__}.session import why_cuda_unavailable; print(why_cuda_unavailable())"
TRIAL = (  # ends at once: CUDA may be unable to clean up
    f"import os, sys; from {__name__} import try_graph; print(); print(try_graph(sys.argv[1]), flush=True); os._exit(0)"
)
TRIAL_SECONDS = 300.0  # to open a graph and run its self-test; a kernel that never returns takes longer
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of the driver; without either there is no GPU to look for
MAX_CHARACTERS = 300  # of the reason of a trial
GPU_UNUSABLE = "BERT_DEVICE is cuda, but the GPU cannot be used"
Prepare = Callable[[Settings, Source, str], Path]
log = logging.getLogger("service")


def find_artifact(settings: Settings, prepare: Prepare = prepare_model) -> Artifact:
    """BERT_MODEL itself if it is an artifact, or what `prepare` makes of a checkpoint. Raises what `find_model`,
    `select_artifact` and `prepare` do, and SettingsError if a setting does not fit the model."""
    source = find_model(settings)
    if isinstance(source, Path):
        artifact = select_artifact(source, settings.device)
    else:
        folder = prepare(settings, source, export_device(settings.device))
        try:
            artifact = select_artifact(folder, settings.device)
        except ManifestError as error:
            raise ManifestError(f"{error} (remove {folder}, and the next start does)") from error
    artifact = artifact.served_as(settings.served_model_name)
    log.info(describe_defaults(artifact.manifest, settings))
    return artifact


def find_artifacts(models: Sequence[Settings], prepare: Prepare = prepare_model) -> list[Artifact]:
    """The artifacts of a service's models, in their order. Raises as `find_artifact`, and DeviceError if they would run
    on different devices."""
    found = {one: find_artifact(one, prepare) for one in sorted(models, key=is_hub_id)}
    artifacts = [found[one] for one in models]
    if len({one.manifest.device for one in artifacts}) > 1:
        raise DeviceError("one model would run on the GPU and another on the CPU: set BERT_DEVICE to cpu")
    for reason in [one.degraded for one in artifacts if one.degraded]:
        log.warning("DEGRADED: serving on the CPU, because the GPU cannot be used: %s", reason)
    return artifacts


def select_artifact(folder: Path, device: str) -> Artifact:
    """`device` is auto, cpu or cuda. Raises ManifestError or DeviceError if it cannot be served.

    The graph for CUDA is tried before it is chosen.
    """
    devices = available(folder)
    if device == "cpu" or (device == "auto" and "cuda" not in devices):
        return _open_for_cpu(folder)
    artifact = open_artifact(folder, "cuda")
    fault = why_cuda_unavailable() or why_graph_unusable(artifact)
    if not fault:
        return artifact
    if device == "cuda":
        raise DeviceError(f"{GPU_UNUSABLE}: {fault}")
    if "cpu" not in devices:
        remedy = "export one with --device cpu too"
        raise DeviceError(f"{folder} holds an artifact for CUDA only, and the GPU cannot be used: {fault}; {remedy}")
    return replace(_open_for_cpu(folder), degraded=fault)


def _open_for_cpu(folder: Path) -> Artifact:
    """Raises DeviceError if this machine cannot run its precision: there is no silent fp32."""
    artifact = open_artifact(folder, "cpu")
    if artifact.manifest.precision == BF16 and (fault := why_bf16_unavailable()):
        raise DeviceError(f"{artifact.folder} is an artifact in bf16, but {fault}")
    return artifact


def why_graph_unusable(artifact: Artifact) -> str:
    """Why the graph of `artifact` cannot be used on the GPU; empty if its self-test passed.

    Found in a child process, which ends with this process: after a fault of CUDA a process cannot run anything else.
    """
    try:
        trial = _run_child(TRIAL, str(artifact.folder.parent), timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the self-test has not ended after {TRIAL_SECONDS:g} s"
    if trial.returncode:
        how = f"exit code {trial.returncode}" if trial.returncode > 0 else f"signal {-trial.returncode}"
        return f"the self-test ended with {how}: {trial.stderr.strip()[-200:]}"
    return trial.stdout.splitlines()[-1]


def try_graph(folder: Path | str) -> str:
    """In the child: why the graph of the CUDA artifact in `folder` cannot be used, on one line; empty if it can."""
    from .calibration import self_test
    from .runner import ModelRunner

    try:
        runner = ModelRunner(read_artifact(Path(folder), "cuda"), threads=1)
        runner.open()
        self_test(runner)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the graph or the card is the finding
        reason = " ".join(str(error).split()) or "no message"
        return f"{type(error).__name__}: {reason}"[:MAX_CHARACTERS]
    return ""


def export_device(device: str) -> str:
    """The device to export for; `device` is auto, cpu or cuda. Raises DeviceError if it cannot be used."""
    if device == "cpu" or (device == "auto" and not any(Path(name).exists() for name in GPU_FILES)):
        return "cpu"
    fault = why_cuda_unavailable()
    if fault and device == "cuda":
        raise DeviceError(f"{GPU_UNUSABLE}: {fault}")
    return "cpu" if fault else "cuda"


def why_cuda_unavailable() -> str:
    """Why no GPU can be used here, empty if a GPU can; found in a child process, which loads ONNX Runtime."""
    check = _run_child(CUDA_CHECK)
    return check.stdout.strip() if check.returncode == 0 else f"the check failed: {check.stderr.strip()[-200:]}"


def _run_child(program: str, *words: str, timeout: float | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs a program of Python in a child process, which ends with this process. Raises TimeoutExpired."""
    ends = f"from {end_with.__module__} import end_with; end_with({os.getpid()}); "
    command = [sys.executable, "-c", ends + program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
