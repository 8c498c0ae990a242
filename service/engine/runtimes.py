"""Which runtime computes the encoder of an fp32 artifact on this CPU: ONNX Runtime, or OpenVINO where it is faster.

The choice is measured once, by `packbert tune` or by the first start, and kept beside the manifest.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Self

from packbert.model_export.artifact.cpu import BF16_RUNTIME, cpu_signature, processor_name
from packbert.model_export.artifact.manifest import HEADS, read_file
from packbert.service.artifact import Artifact
from packbert.service.engine.session import onnxruntime_version
from packbert.service.settings import variables_only

ONNX_RUNTIME, OPENVINO = "onnxruntime", BF16_RUNTIME
CHOICE, MAX_CHOICE_BYTES = "runtime.json", 2**16  # the file beside the manifest
LEAST_BYTES = 2**27  # of weights, for a start to measure: smaller models were slower in OpenVINO
TUNING = ("-m", "packbert", "tune")
TUNING_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeChoice:
    """What was measured, and for which artifact, processor, versions and threads it holds."""

    runtime: str  # ONNX_RUNTIME or OPENVINO
    reason: str
    milliseconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # batch -> runtime -> shortest time
    digest: str  # of the artifact
    machine: str
    threads: int

    @classmethod
    def kept(cls, artifact: Artifact, threads: int) -> Self | None:
        """The choice beside the manifest; None where there is none, or it is of something else."""
        try:
            choice = cls(**json.loads(read_file(artifact.folder / CHOICE, MAX_CHOICE_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return choice if asdict(choice).items() >= made_for(artifact, threads).items() else None

    def keep(self, artifact: Artifact) -> None:
        """Writes it beside the manifest. Raises OSError."""
        (artifact.folder / CHOICE).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


def made_for(artifact: Artifact, threads: int) -> dict[str, Any]:
    """The fields of a choice that say what it holds for."""
    versions = f"{cpu_signature(onnxruntime_version())}, OpenVINO {version(OPENVINO)}"
    return {"digest": artifact.digest, "machine": f"{processor_name()}, {versions}", "threads": threads}


def why_no_choice(artifact: Artifact) -> str:
    """Why the runtime of `artifact` is given; empty where it can be chosen."""
    manifest = artifact.manifest
    if manifest.device != "cpu" or manifest.precision != "fp32":
        return f"the runtime of an artifact in {manifest.precision} on {manifest.device} is given: only fp32 on a CPU"
    if HEADS not in manifest.files:
        return f"the artifact has no {HEADS}, which OpenVINO needs: export the checkpoint again, without --prepacked"
    return "" if find_spec(OPENVINO) else "OpenVINO is not installed: install packbert with the extra openvino"


def choose_runtime(artifact: Artifact, threads: int, *, measures: bool) -> RuntimeChoice | None:
    """The choice that is kept; without one that of a measurement, in a process of its own, where `measures` is set and
    the result can be kept. None where there is none: ONNX Runtime."""
    if why_no_choice(artifact):
        return None
    kept = RuntimeChoice.kept(artifact, threads)
    measures = measures and artifact.weights_bytes > LEAST_BYTES and os.access(artifact.folder, os.W_OK)
    if kept is not None or not measures:
        return kept
    logging.getLogger("service").info("measuring once whether OpenVINO is faster: %s", artifact.manifest.name)
    environment = variables_only(BERT_DEVICE="cpu", BERT_THREADS=str(threads))
    command, fault = [sys.executable, *TUNING, str(artifact.folder.parent)], f"it takes over {TUNING_SECONDS:g} s"
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=TUNING_SECONDS
        )
        fault = f"exit code {ended.returncode}: {ended.stderr.strip()[-200:]}"
    if (found := RuntimeChoice.kept(artifact, threads)) is None:  # kept too, so that no start repeats it
        reason = f"the measurement has not ended: {fault}"
        found = RuntimeChoice(runtime=ONNX_RUNTIME, reason=reason, **made_for(artifact, threads))
        with suppress(OSError):
            found.keep(artifact)
    return found
