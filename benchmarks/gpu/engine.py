"""The engine on a GPU: parity and repeatability, rates, and clocks under load."""

import subprocess
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.plan import GpuPlan
from benchmarks.harness import mixes
from benchmarks.harness.machine import table
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.calibration import self_test
from packbert.service.engine.device import why_graph_unusable
from packbert.service.engine.runner import ModelRunner

ALL_HEADS = frozenset({"cls", "mean", "pooler", "pair", "top_logits", "log_sum_exp"})
MIN_COSINE = 0.9999
REPEATS = 5
IDLE = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,memory.total"
BUSY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
SQUAD = {"mean": 177.0, "deviation": 80.0, "longest": 384.0}
LENGTHS: dict[str, Callable[[int], list[int]]] = {  # mix -> lengths of a batch of about so many tokens
    "STS-B": lambda tokens: (mixes.STS_B * (1 + tokens // sum(mixes.STS_B)))[: max(1, round(tokens / 14.7))],
    "128": lambda tokens: [128] * max(1, tokens // 128),
    "512": lambda tokens: [512] * max(1, tokens // 512),
    "SQuAD": lambda tokens: mixes.passages(max(1, tokens // 177), **SQUAD),
}
TARGETS = {  # size, mix -> what is counted, what must hold, what is hoped for; of an H200 in fp16
    ("base", "STS-B"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "128"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "512"): ("tokens_per_second", 1.5e6, 1.9e6),
    ("large", "SQuAD"): ("sequences_per_second", 2500.0, 4000.0),
}
Rates = dict[str, dict[int, dict[str, float]]]  # mix -> tokens in a batch -> what is counted


@contextmanager
def open_runner(artifact: Artifact) -> Iterator[ModelRunner]:
    runner = ModelRunner(artifact, threads=0 if artifact.manifest.device == "cpu" else 1)
    runner.open()
    yield runner
    runner.close()


def measure_self_test(artifact: Artifact) -> dict[str, Any]:
    """Whether the self-test passes, on a GPU in a process of its own, as at a start; and the reason if it fails."""
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
    targets = [
        [mix, counted, must, hoped_for, max(one[counted] for one in rates[mix].values())]
        for (target_size, mix), (counted, must, hoped_for) in TARGETS.items()
        if target_size == size or plan.device == "cpu"  # the rehearsal uses all targets
    ]
    print("\n" + table(["best of", "counted", "must", "hoped for", "measured"], targets), flush=True)
    return {"by mix and tokens": rates, "targets": targets}


def measure_rate(runner: ModelRunner, lengths: list[int], rounds: int) -> dict[str, float]:
    """The best run of the session alone, its inputs on the host, and of the runner with packing and splitting."""
    sequences = random_tokens(runner, lengths)
    batch = pack(sequences, runner.artifact.manifest.layout)
    run_session = partial(runner._session.run, sorted(batch.outputs), batch.feeds)
    session = min(timeit.repeat(run_session, number=1, repeat=rounds + 1))
    with_packing = min(timeit.repeat(partial(runner.run_sync, sequences), number=1, repeat=rounds))
    return {
        "tokens_per_second": batch.tokens / session,
        "sequences_per_second": len(lengths) / session,
        "with_packing_tokens_per_second": batch.tokens / with_packing,
    }


def query_busy_card(plan: GpuPlan, runner: ModelRunner) -> str:
    """The card's clocks and power while batches run."""
    sequences = random_tokens(runner, LENGTHS["128"](plan.tokens[-1]))
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(query_card, plan.device, BUSY)
        while not query.done():
            runner.run_sync(sequences)
    return query.result()


def query_card(device: str, fields: str) -> str:
    """`fields` of the first GPU as nvidia-smi prints them, or the error if it cannot be run."""
    if device == "cpu":
        return "none: a rehearsal on the CPU"
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (finished.stdout + finished.stderr).strip()
