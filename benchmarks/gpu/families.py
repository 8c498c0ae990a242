"""The golden checkpoint of each family on the device, against the answers of transformers in fp32 on a CPU."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.gpu.plan import GpuPlan
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner
from tests.export.goldens import NAMES, expected, request
from tests.paths import GOLDEN

HEADS = {
    "pooler": "pooler",
    "pair": "pair",
    "vocabulary": "fill_mask",
    "labels": "labels",
    "tags": "tags",
    "spans": "spans",
    "choices": "choices",
}  # in expected.npz -> in the manifest
PROCESSES = 8  # at the same time; a fault of CUDA ends only that of one checkpoint


def measure_families(plan: GpuPlan) -> dict[str, Any]:
    """By checkpoint and precision: what `compare` finds, or the error; prints the largest differences."""
    precisions = ["fp32", *{plan.precision} - {"fp32"}]
    jobs = [(name, precision, plan.device) for name in NAMES[: plan.families] for precision in precisions]
    with ThreadPoolExecutor(PROCESSES) as pool:
        found = dict(
            zip([f"{name} {precision}" for name, precision, _ in jobs], pool.map(run_apart, jobs), strict=True)
        )
    for precision in precisions:
        of = {name: one for name, one in found.items() if name.endswith(precision)}
        heads = sorted({head for one in of.values() for head in one.get("relative", {})})
        worst = {
            head: max(one["relative"].get(head, 0.0) for one in of.values() if "relative" in one) for head in heads
        }
        print(f"{precision}: {len(of)} checkpoints, {sum('error' in one for one in of.values())} failed; {worst}")
    return found


def run_apart(job: tuple[str, str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.families", *job]
    finished = subprocess.run(command, capture_output=True, check=False)
    found: dict[str, Any] = (
        orjson.loads(finished.stdout) if not finished.returncode else {"error": finished.stderr[-500:]}
    )
    return found


def compare(name: str, precision: str, device: str) -> dict[str, Any]:
    """`relative`: by head the largest difference, of its largest number; `same_alone`: whether each answer has the same
    bits alone and in the batch."""
    sequences = expected(name)
    with tempfile.TemporaryDirectory() as made:
        export(GOLDEN / name, Path(made) / "artifact", precision=precision, device=device)
        runner = ModelRunner(open_artifact(Path(made) / "artifact", device), threads=1)
        runner.open()
        heads = [head for shown, head in HEADS.items() if shown in sequences[0]] or ["cls"]
        vocabulary = runner.artifact.manifest.sizes["vocabulary"]
        asked = [request(sequence, heads, vocabulary) for sequence in sequences]
        rows = _rows(runner, asked)
        alone = [_rows(runner, [one])[0] for one in asked]
        layout = runner.artifact.manifest.layout
        runner.close()
    relative: dict[str, float] = {}
    for sequence, row in zip(sequences, rows, strict=True):
        for head, got in _by_head(sequence, row):
            difference = float(np.abs(got - sequence[head]).max() / np.abs(sequence[head]).max())
            relative[head] = max(relative.get(head, 0.0), difference)
    same = all(np.array_equal(row[head], one[head]) for row, one in zip(rows, alone, strict=True) for head in row)
    return {"layout": layout, "relative": relative, "same_alone": same}


def _rows(runner: ModelRunner, asked: list[Any]) -> list[dict[str, Any]]:
    rows = runner.run_sync(asked)[0]
    if None in rows:
        raise ValueError("a row is not finite")
    return [row for row in rows if row is not None]


def _by_head(sequence: dict[str, Any], row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for head in HEADS:
        if head in row:
            yield head, row[head] if head in ("tags", "spans") else row[head][0]
    if "top_ids" in row:
        logits = np.zeros_like(sequence["vocabulary"])
        np.put_along_axis(logits, row["top_ids"].astype(np.int64), row["top_logits"], axis=1)
        yield "vocabulary", logits


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(compare(*sys.argv[1:])))
