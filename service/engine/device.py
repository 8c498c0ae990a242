"""Which of a folder's artifacts is served: what was asked for, what is there, and what this machine can run."""

from dataclasses import dataclass
from pathlib import Path

from service.artifact import Artifact, available, open_artifact
from service.engine.session import DeviceError, why_cuda_unavailable


@dataclass(frozen=True, slots=True)
class Choice:
    artifact: Artifact
    degraded: str  # why the CPU is used though there is an artifact for the GPU; empty where that is not so


def select_artifact(folder: Path, device: str) -> Choice:
    """`device` is auto, cpu or cuda. Raises ManifestError or DeviceError where it cannot be served."""
    there = available(folder)
    if device == "cpu" or (device == "auto" and "cuda" not in there):
        return Choice(open_artifact(folder, "cpu"), "")
    artifact = open_artifact(folder, "cuda")
    fault = why_cuda_unavailable()
    if not fault:
        return Choice(artifact, "")
    if device == "cuda":
        raise DeviceError(f"BERT_DEVICE is cuda, but the GPU cannot be used: {fault}")
    if "cpu" not in there:
        raise DeviceError(
            f"{folder} holds an artifact for CUDA only, and the GPU cannot be used: {fault}; export one with --device cpu too"
        )
    return Choice(open_artifact(folder, "cpu"), fault)
