"""Which runtime computes the encoder of an fp32 artifact on this CPU: ONNX Runtime, or OpenVINO where it is faster.

The choice is measured once, by `packbert tune` or by the first start, and kept beside the manifest. Does not import
either of them.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Self

from packbert.model_export.artifact.cpu import BF16_RUNTIME, cpu_signature, processor_name
from packbert.model_export.artifact.manifest import HEADS, read_file
from packbert.service.artifact import Artifact

ONNX_RUNTIME, OPENVINO = "onnxruntime", BF16_RUNTIME
CHOICE = "runtime.json"  # beside the manifest
MAX_CHOICE_BYTES = 2**16
LEAST_BYTES = 2**27  # of weights: a smaller model is slower in OpenVINO where it answers one text
TUNING = f"from {__package__}.tune import main; main()"
TUNING_SECONDS = 300.0  # of the process that measures
log = logging.getLogger("service")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeChoice:
    """What was measured, and for which artifact, processor, versions and threads it holds."""

    runtime: str  # ONNX_RUNTIME or OPENVINO
    reason: str
    milliseconds: Mapping[str, Mapping[str, float]]  # batch -> runtime -> the shortest time
    machine: str
    threads: int
    digest: str  # of the artifact

    @classmethod
    def kept(cls, artifact: Artifact, threads: int) -> Self | None:
        """The choice beside the manifest; None where there is none, or it is of something else."""
        try:
            choice = cls(**json.loads(read_file(artifact.folder / CHOICE, MAX_CHOICE_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        expected = (machine(), threads, artifact.digest)
        return choice if (choice.machine, choice.threads, choice.digest) == expected else None

    def keep(self, artifact: Artifact) -> None:
        """Writes it beside the manifest. Raises OSError."""
        path = artifact.folder / CHOICE
        written = path.with_name(f"{CHOICE}.{os.getpid()}.new")
        try:
            written.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)


def why_no_choice(artifact: Artifact) -> str:
    """Why the runtime of `artifact` is given; empty where it can be chosen."""
    manifest = artifact.manifest
    if manifest.device != "cpu" or manifest.precision != "fp32":
        return f"the runtime of an artifact in {manifest.precision} on {manifest.device} is given: only fp32 on a CPU"
    if artifact.weights_bytes <= LEAST_BYTES:
        return f"a model of {artifact.weights_bytes >> 20} MiB, below {LEAST_BYTES >> 20}, is not faster in OpenVINO"
    if HEADS not in manifest.files:
        return f"the artifact has no {HEADS}, which OpenVINO needs: export the checkpoint again, without --prepacked"
    return "" if find_spec(OPENVINO) else "OpenVINO is not installed: install packbert with the extra openvino"


def choose_runtime(artifact: Artifact, threads: int, *, measures: bool) -> RuntimeChoice | None:
    """The choice that is kept; without one that of a measurement, in a process of its own, where `measures` is set and
    the result can be kept. None where there is none: ONNX Runtime."""
    if why_no_choice(artifact):
        return None
    kept = RuntimeChoice.kept(artifact, threads)
    if kept is not None or not measures or not os.access(artifact.folder, os.W_OK):
        return kept
    log.info("%s: measuring once whether OpenVINO or ONNX Runtime is faster", artifact.manifest.name)
    command = [sys.executable, "-c", TUNING, str(artifact.folder.parent), str(threads)]
    fault = f"the measurement has not ended after {TUNING_SECONDS:g} s"
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TUNING_SECONDS)
        if (kept := RuntimeChoice.kept(artifact, threads)) is not None:
            return kept
        fault = f"the measurement ended with exit code {ended.returncode}: {ended.stderr.strip()[-200:]}"
    choice = without_openvino(artifact, threads, fault)
    with suppress(OSError):
        choice.keep(artifact)  # not measured at each start
    return choice


def without_openvino(artifact: Artifact, threads: int, reason: str) -> RuntimeChoice:
    return RuntimeChoice(
        runtime=ONNX_RUNTIME, reason=reason, milliseconds={}, machine=machine(), threads=threads, digest=artifact.digest
    )


def machine() -> str:
    """The processor and the versions of both runtimes."""
    of_onnxruntime = _version("onnxruntime-gpu") or _version("onnxruntime")
    return f"{processor_name()}, {cpu_signature(of_onnxruntime)}, OpenVINO {_version(OPENVINO)}"


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""
