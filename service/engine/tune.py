"""Measures an fp32 encoder in ONNX Runtime and in OpenVINO: `packbert tune`, and the first start of an artifact."""

import math
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from packbert.model_export.artifact.batch import LAST, Tokens
from packbert.service.artifact import Artifact, read_artifact
from packbert.service.engine.calibration import filler, self_test
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.runtimes import ONNX_RUNTIME, OPENVINO, RuntimeChoice, machine, without_openvino
from packbert.service.errors import DeviceError

BATCHES: Mapping[str, tuple[int, ...]] = {  # the tokens of each text
    "one text of 16 tokens": (16,),
    "32 texts of 16 tokens": (16,) * 32,
    "one text of 512 tokens": (512,),
}
FASTER = 0.9  # of ONNX Runtime's time: a smaller gain is not worth 1.7 times the memory (BERT-base)
ROUNDS = 6  # the first one warms up
MAX_SECONDS = 4.0  # after two rounds
COMPANY = (3, 200, 5, 17, 130, 60, 33, 128, 8, 90, 16)  # tokens of texts that are compared alone and together


def main() -> None:
    """`python -c`, with the folder of the artifact and the number of threads."""
    artifact = read_artifact(Path(sys.argv[1]), "cpu")
    tune(artifact, int(sys.argv[2])).keep(artifact)


def tune(artifact: Artifact, threads: int) -> RuntimeChoice:
    """The faster runtime, OpenVINO only if its answers are right and the same in any company. Raises as
    `ModelRunner.open`."""
    runners = {name: ModelRunner(artifact, threads) for name in (ONNX_RUNTIME, OPENVINO)}
    runners[OPENVINO].openvino = True
    with ExitStack() as opened:
        if fault := _why_unusable(runners[OPENVINO], opened):
            return without_openvino(artifact, threads, f"OpenVINO cannot run it: {fault}")
        runners[ONNX_RUNTIME].open()
        opened.callback(runners[ONNX_RUNTIME].close)
        times = _times(runners)
    logarithms = [math.log(one[OPENVINO] / one[ONNX_RUNTIME]) for one in times.values()]
    ratio = math.exp(sum(logarithms) / len(logarithms))
    return RuntimeChoice(
        runtime=OPENVINO if ratio <= FASTER else ONNX_RUNTIME,
        reason=f"OpenVINO takes {ratio:.2f} of ONNX Runtime's time; it is chosen up to {FASTER}, for its memory",
        milliseconds={batch: {name: round(1000 * one, 2) for name, one in of.items()} for batch, of in times.items()},
        machine=machine(),
        threads=threads,
        digest=artifact.digest,
    )


def _why_unusable(runner: ModelRunner, opened: ExitStack) -> str:
    """Why OpenVINO cannot take the place of ONNX Runtime; empty where it can."""
    try:
        runner.open()
        opened.callback(runner.close)
        self_test(runner)
    except DeviceError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever OpenVINO raises on a graph is the finding
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    texts = [filler(runner.artifact.manifest, length) for length in COMPANY]
    # a neighbour that asks for the states of a layer has the batch computed by the graph of all layers
    of_layer = Tokens(ids=texts[0].ids, types=texts[0].types, outputs=frozenset({"layer_cls"}), layers=(0, LAST))
    alone = [runner.run_sync([text])[0][0] for text in texts]
    batches = ([*texts], [*reversed(texts)], [*texts, of_layer])
    for batch in batches:
        rows = {id(text): row for text, row in zip(batch, runner.run_sync(batch)[0], strict=True)}
        for text, expected in zip(texts, alone, strict=True):
            found = rows[id(text)]
            if found is None or expected is None or not np.array_equal(found["cls"], expected["cls"]):
                return "its answer for a text changes with the other texts of the batch"
    return ""


def _times(runners: Mapping[str, ModelRunner]) -> dict[str, dict[str, float]]:
    """The shortest time of each batch in each runtime, in seconds; in turns."""
    manifest = runners[ONNX_RUNTIME].artifact.manifest
    texts = {name: [filler(manifest, length) for length in lengths] for name, lengths in BATCHES.items()}
    best = {name: dict.fromkeys(runners, math.inf) for name in texts}
    began = time.monotonic()
    for done in range(ROUNDS):
        for name, batch in texts.items():
            for runtime, runner in runners.items():
                started = time.perf_counter()
                runner.run_side_by_side(batch)
                best[name][runtime] = min(best[name][runtime], time.perf_counter() - started)
        if done and time.monotonic() - began > MAX_SECONDS:
            break
    return best
