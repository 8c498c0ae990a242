"""The engine on a GPU: parity and repeatability, the attention kernel that runs, rates, and clocks under load."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine.contenders.turns import timed
from benchmarks.gpu.card import BUSY, query_card
from benchmarks.gpu.plan import LENGTHS, TARGETS, GpuPlan
from benchmarks.harness import mixes
from benchmarks.harness.machine import table
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.calibration import self_test
from packbert.service.engine.device import why_graph_unusable
from packbert.service.engine.runner import ModelRunner

KERNEL_ENVIRONMENT = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
COLOUR = re.compile(r"\x1b\[\d+m")
ALL_HEADS = frozenset({"cls", "mean", "pooler", "pair", "top_logits", "log_sum_exp"})
MIN_COSINE = 0.9999
REPEATS = 5
Rates = dict[str, dict[int, dict[str, float]]]  # mix -> tokens in a batch -> what is counted


@contextmanager
def open_runner(artifact: Artifact) -> Iterator[ModelRunner]:
    runner = ModelRunner(artifact, threads=0 if artifact.manifest.device == "cpu" else 1)
    runner.open()
    yield runner
    runner.close()


def measure_self_test(artifact: Artifact) -> dict[str, Any]:
    """Whether the self-test passes, on a GPU in a process of its own, as at a start; and the reason where it fails."""
    if artifact.manifest.device == "cuda":
        reason = why_graph_unusable(artifact)
        return {"holds": not reason, "reason": reason}
    with open_runner(artifact) as runner:
        return {"holds": True, "reason": "", "smallest_cosine": self_test(runner)}


def random_tokens(
    runner: ModelRunner, lengths: list[int], outputs: frozenset[str] = frozenset({"cls"})
) -> list[Tokens]:
    return mixes.texts(lengths, vocabulary=runner.artifact.manifest.sizes["vocabulary"], outputs=outputs)


def measure_parity(gpu: ModelRunner, reference: Path) -> dict[str, Any]:
    """Compares all heads with fp32 on the CPU, and the bits of five runs of one batch with each other."""
    lengths = [*mixes.MIXES["mixed: 32 of 5..60"], 512, 300, 129]
    sequences = random_tokens(gpu, lengths, outputs=ALL_HEADS | {"top_ids"})
    runs = [run_all_heads(gpu, sequences) for _ in range(REPEATS)]
    with open_runner(open_artifact(reference, "cpu")) as cpu:
        expected = run_all_heads(cpu, sequences)
    vectors, known = runs[0]["cls"], expected["cls"]
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(known, axis=1)
    smallest = float(((vectors * known).sum(axis=1) / norms).min())
    differences = {head: float(np.abs(runs[0][head] - expected[head]).max()) for head in sorted(ALL_HEADS)}
    return {
        "holds": smallest >= MIN_COSINE,
        "smallest_cosine": smallest,
        "largest_differences": differences,
        "repeatable": all(np.array_equal(runs[0][head], run[head]) for run in runs for head in ALL_HEADS),
        "self_test": self_test(gpu),
    }


def run_all_heads(runner: ModelRunner, sequences: list[Tokens]) -> dict[str, NDArray[Any]]:
    """Each head's rows of all sequences; raises ValueError if one is not finite."""
    rows = runner.run_sync(sequences)[0]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise ValueError(f"{len(rows) - len(found)} of {len(rows)} rows are not finite")
    return {head: np.concatenate([row[head] for row in found]) for head in ALL_HEADS}


def measure_rates(plan: GpuPlan, size: str, runner: ModelRunner) -> dict[str, Any]:
    """Rates by mix and tokens in a batch, and the best of them beside their targets; prints both."""
    rates: Rates = {
        mix: {tokens: measure_rate(runner, lengths(tokens), plan.rounds) for tokens in plan.tokens}
        for mix, lengths in LENGTHS.items()
    }
    for counted in ("tokens_per_second", "with_packing_tokens_per_second", "sequences_per_second"):
        rows = [[mix, *(one[counted] for one in by_tokens.values())] for mix, by_tokens in rates.items()]
        print("\n" + table([f"{counted}, batch of", *map(str, plan.tokens)], rows))
    targets = compare_with_targets(plan, size, rates)
    print("\n" + table(["best of", "counted", "must", "hoped for", "measured"], targets), flush=True)
    return {"by mix and tokens": rates, "targets": targets}


def measure_rate(runner: ModelRunner, lengths: list[int], rounds: int) -> dict[str, float]:
    """The best run of the session alone, its inputs on the host, and of the runner with packing and splitting."""
    sequences = random_tokens(runner, lengths)
    batch = pack(sequences, runner.artifact.manifest.layout)
    run_session = partial(runner._session.run, sorted(batch.outputs), batch.feeds)
    session = min(timed(run_session) for _ in range(rounds + 1))
    with_packing = min(timed(partial(runner.run_sync, sequences)) for _ in range(rounds))
    return {
        "tokens_per_second": batch.tokens / session,
        "sequences_per_second": len(lengths) / session,
        "with_packing_tokens_per_second": batch.tokens / with_packing,
    }


def compare_with_targets(plan: GpuPlan, size: str, rates: Rates) -> list[list[Any]]:
    """Rows of mix, what is counted, must, hoped for and the best rate; the rehearsal uses all targets."""
    return [
        [mix, counted, must, hoped_for, max(one[counted] for one in rates[mix].values())]
        for (target_size, mix), (counted, must, hoped_for) in TARGETS.items()
        if target_size == size or plan.device == "cpu"
    ]


def find_kernels(folder: Path, device: str) -> list[str]:
    """The lines in which ONNX Runtime names its attention kernel, from one batch in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--kernels", str(folder), "--device", device]
    finished = subprocess.run(
        command,
        env=os.environ | KERNEL_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(finished.stdout)
    lines = COLOUR.sub("", finished.stdout).splitlines()
    return sorted({line for line in lines if "attention" in line.lower() or "sdpa" in line.lower()})


def run_one_batch(folder: Path, device: str) -> None:
    """What `find_kernels` runs in its process."""
    with open_runner(open_artifact(folder, device)) as runner:
        runner.run_sync(random_tokens(runner, LENGTHS["128"](1024)))


def query_busy_card(plan: GpuPlan, runner: ModelRunner) -> str:
    """The card's clocks and power while batches run."""
    sequences = random_tokens(runner, LENGTHS["128"](plan.tokens[-1]))
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(query_card, plan.device, BUSY)
        while not query.done():
            runner.run_sync(sequences)
    return query.result()
