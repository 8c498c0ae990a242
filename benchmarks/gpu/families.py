"""The golden checkpoint of each family on the device, against the answers of transformers in fp32 on a CPU."""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.gpu.plan import GpuPlan
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner
from tests.export.goldens import NAMES, expected, outputs_of, requests_of_all_heads
from tests.paths import GOLDEN

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
        asked = requests_of_all_heads(sequences, runner.artifact.manifest.sizes["vocabulary"])
        rows = _rows(runner, asked)
        alone = [_rows(runner, [one])[0] for one in asked]
        layout = runner.artifact.manifest.layout
        runner.close()
    relative: dict[str, float] = {}
    for sequence, row in zip(sequences, rows, strict=True):
        for head, got in outputs_of(sequence, row).items():
            difference = float(np.abs(got - sequence[head]).max() / np.abs(sequence[head]).max())
            relative[head] = max(relative.get(head, 0.0), difference)
    same = all(np.array_equal(row[head], one[head]) for row, one in zip(rows, alone, strict=True) for head in row)
    return {"layout": layout, "relative": relative, "same_alone": same}


def _rows(runner: ModelRunner, asked: list[Any]) -> list[dict[str, Any]]:
    rows = runner.run_sync(asked)[0]
    if None in rows:
        raise ValueError("a row is not finite")
    return [row for row in rows if row is not None]


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(compare(*sys.argv[1:])))
