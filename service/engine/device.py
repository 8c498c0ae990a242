"""What this machine runs: which of a folder's artifacts, and how batches share the device.

Does not import ONNX Runtime: the supervisor of several processes selects an artifact too.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from model_export.artifact.cpu import BF16, why_bf16_unavailable
from service.artifact import Artifact, available, open_artifact
from service.errors import DeviceError
from service.scheduling.concurrency import SERIAL, Concurrency

PROBE = f"from {__package__}.cuda import why_cuda_unavailable; print(why_cuda_unavailable())"
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of the driver; without either there is no GPU to look for
PER_CORE_PRECISIONS = ("int8",)  # cheap products, for which synchronizing threads costs more than it does in fp32
MAX_COPIED_BYTES = 2**27  # of weights: up to here another copy is cheap, and fp32 batches run on one core each too


@dataclass(frozen=True, slots=True)
class ArtifactChoice:
    artifact: Artifact
    degraded: str = ""  # why the CPU is used although there is an artifact for the GPU


def select_artifact(folder: Path, device: str) -> ArtifactChoice:
    """`device` is auto, cpu or cuda. Raises ManifestError or DeviceError where it cannot be served."""
    devices = available(folder)
    if device == "cpu" or (device == "auto" and "cuda" not in devices):
        return ArtifactChoice(_open_for_cpu(folder))
    artifact = open_artifact(folder, "cuda")
    fault = why_cuda_unavailable()
    if not fault:
        return ArtifactChoice(artifact)
    if device == "cuda":
        raise DeviceError(f"BERT_DEVICE is cuda, but the GPU cannot be used: {fault}")
    if "cpu" not in devices:
        remedy = "export one with --device cpu too"
        raise DeviceError(f"{folder} holds an artifact for CUDA only, and the GPU cannot be used: {fault}; {remedy}")
    return ArtifactChoice(_open_for_cpu(folder), fault)


def _open_for_cpu(folder: Path) -> Artifact:
    """Raises DeviceError where this machine cannot run its precision: there is no silent fp32."""
    artifact = open_artifact(folder, "cpu")
    if artifact.manifest.precision == BF16 and (fault := why_bf16_unavailable()):
        raise DeviceError(f"{artifact.folder} is an artifact in bf16, but {fault}")
    return artifact


def export_device(device: str) -> str:
    """The device to export for; `device` is auto, cpu or cuda. Raises DeviceError where it cannot be used."""
    if device == "cpu" or (device == "auto" and not any(Path(name).exists() for name in GPU_FILES)):
        return "cpu"
    fault = why_cuda_unavailable()
    if fault and device == "cuda":
        raise DeviceError(f"BERT_DEVICE is cuda, but the GPU cannot be used: {fault}")
    return "cpu" if fault else "cuda"


def why_cuda_unavailable() -> str:
    """Why no GPU can be used here, empty where one can; found in a process of its own, which loads ONNX Runtime."""
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    return probe.stdout.strip() if probe.returncode == 0 else f"the probe failed: {probe.stderr.strip()[-200:]}"


def concurrency_for(artifact: Artifact, threads: int) -> Concurrency:
    """A GPU would idle while the host packs and splits; a CPU has no time to spare for preparing, but several cores."""
    if artifact.manifest.device == "cuda":
        return Concurrency(max_in_flight=2)
    small = artifact.weights_bytes <= MAX_COPIED_BYTES
    if threads > 1 and (artifact.manifest.precision in PER_CORE_PRECISIONS or small):
        return Concurrency(max_in_flight=threads, per_core=True)
    return SERIAL
