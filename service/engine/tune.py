"""Measures an fp32 encoder in ONNX Runtime and in OpenVINO."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from packbert.model_export.artifact.batch import LAST, Tokens
from packbert.service.artifact import Artifact
from packbert.service.engine.calibration import filler, self_test
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.runtimes import ONNX_RUNTIME, OPENVINO, RuntimeChoice, made_for
from packbert.service.errors import DeviceError

BATCHES = {"one text of 16 tokens": (16,), "32 texts of 16 tokens": (16,) * 32, "one text of 512 tokens": (512,)}
FASTER = 0.9  # of ONNX Runtime's time: a smaller gain is not worth 1.9 times the memory (BERT-base)
ROUNDS, MAX_SECONDS = 6, 4.0  # the first round warms up; there are at least two
TURN_SECONDS = 0.2  # one run at least
COMPANY = (3, 200, 5, 17, 130, 60, 33, 128, 8, 90, 16)  # tokens of texts that are compared alone and together


def tune(artifact: Artifact, threads: int) -> RuntimeChoice:
    """The faster runtime, OpenVINO only if its answers are right and the same in any company. Raises as
    `ModelRunner.open`."""
    runners = {name: ModelRunner(artifact, threads) for name in (ONNX_RUNTIME, OPENVINO)}
    runners[OPENVINO].openvino = True
    with ExitStack() as opened:
        if fault := _why_unusable(runners[OPENVINO], opened):
            reason = f"OpenVINO cannot run it: {fault}"
            return RuntimeChoice(runtime=ONNX_RUNTIME, reason=reason, **made_for(artifact, threads))
        runners[ONNX_RUNTIME].open()
        opened.callback(runners[ONNX_RUNTIME].close)
        times = _times(runners)
    ratio = math.prod(one[OPENVINO] / one[ONNX_RUNTIME] for one in times.values()) ** (1 / len(times))
    return RuntimeChoice(
        runtime=OPENVINO if ratio <= FASTER else ONNX_RUNTIME,
        reason=f"OpenVINO takes {ratio:.2f} of ONNX Runtime's time; it is chosen up to {FASTER}, for its memory",
        milliseconds={batch: {name: round(1000 * one, 2) for name, one in of.items()} for batch, of in times.items()},
        **made_for(artifact, threads),
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
    alone = {id(text): runner.run_sync([text])[0][0] for text in texts}
    for batch in (texts, texts[::-1], [*texts, of_layer]):
        for text, row in zip(batch, runner.run_sync(batch)[0], strict=True):
            expected = alone.get(id(text), row)
            if row is None or expected is None or any(not np.array_equal(row[one], expected[one]) for one in row):
                return "its answer for a text changes with the other texts of the batch"
    return ""


def _times(runners: Mapping[str, ModelRunner]) -> dict[str, dict[str, float]]:
    """The shortest time of each batch in each runtime, in seconds; in turns."""
    manifest, began = runners[ONNX_RUNTIME].artifact.manifest, time.monotonic()
    texts = {name: [filler(manifest, length) for length in lengths] for name, lengths in BATCHES.items()}
    best = {name: dict.fromkeys(runners, math.inf) for name in texts}
    for done in range(ROUNDS):
        for name, batch in texts.items():
            for runtime, runner in runners.items():
                turn = time.perf_counter()
                while (started := time.perf_counter()) < turn + TURN_SECONDS:
                    runner.run_side_by_side(batch)
                    best[name][runtime] = min(best[name][runtime], time.perf_counter() - started)
        if done and time.monotonic() - began > MAX_SECONDS:
            break
    return best
