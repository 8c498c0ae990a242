"""What this machine runs: which of a folder's artifacts, and how batches share the device.

Importing it does not load ONNX Runtime, which a process that only starts others does not need.
"""

from dataclasses import dataclass
from pathlib import Path

from service.artifact import Artifact, available, open_artifact
from service.scheduling.concurrency import SERIAL, Concurrency

PER_CORE_PRECISIONS = ("int8",)  # cheap products, for which synchronizing threads costs more than it does in fp32
MAX_COPIED_BYTES = 2**27  # of weights: up to here another copy is cheap, and fp32 batches run on one core each too


class DeviceError(Exception):
    """The device cannot be used as asked; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Choice:
    artifact: Artifact
    degraded: str  # why the CPU is used though there is an artifact for the GPU; otherwise empty


def select_artifact(folder: Path, device: str) -> Choice:
    """`device` is auto, cpu or cuda. Raises ManifestError or DeviceError where it cannot be served."""
    devices = available(folder)
    if device == "cpu" or (device == "auto" and "cuda" not in devices):
        return Choice(open_artifact(folder, "cpu"), "")
    from service.engine.cuda import why_cuda_unavailable

    artifact = open_artifact(folder, "cuda")
    reason = why_cuda_unavailable()
    if not reason:
        return Choice(artifact, "")
    if device == "cuda":
        raise DeviceError(f"BERT_DEVICE is cuda, but the GPU cannot be used: {reason}")
    if "cpu" not in devices:
        found = f"{folder} holds an artifact for CUDA only, and the GPU cannot be used: {reason}"
        raise DeviceError(f"{found}; export one with --device cpu too")
    return Choice(open_artifact(folder, "cpu"), reason)


def concurrency_for(artifact: Artifact, threads: int) -> Concurrency:
    """A GPU would idle while the host packs and splits; a CPU has no time to spare for preparing, but several cores."""
    if artifact.manifest.device == "cuda":
        return Concurrency(max_in_flight=2)
    small = artifact.weights_bytes <= MAX_COPIED_BYTES
    if threads > 1 and (artifact.manifest.precision in PER_CORE_PRECISIONS or small):
        return Concurrency(max_in_flight=threads, per_core=True)
    return SERIAL
