"""`benchmarks/gpu.sh`: on a GPU, parity and repeatability first, then which attention kernel runs, then tokens per second of the engine.

Refuses to start without a GPU: what was not measured has no figure.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import mixes
from benchmarks.checkpoints import SIZES, artifact
from benchmarks.engine import timed
from benchmarks.machine import table, write
from model_export.batch import CUMULATIVE_LENGTHS, Tokens, pack
from service.artifact import open_artifact
from service.runtime import Runtime
from service.session import cuda_fault

KERNEL_ENVIRONMENT = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
TOKENS = (1024, 4096, 16384, 65536)  # in one batch
SQUAD = {"mean": 177.0, "deviation": 80.0, "longest": 384}
LENGTHS: dict[str, Callable[[int], list[int]]] = {
    "STS-B": lambda tokens: (mixes.STS_B * (1 + tokens // sum(mixes.STS_B)))[: max(1, round(tokens / 14.7))],
    "128": lambda tokens: [128] * (tokens // 128),
    "512": lambda tokens: [512] * (tokens // 512),
    "SQuAD": lambda tokens: mixes.passages(max(1, tokens // 177), **SQUAD),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), action="append", help="base and large unless given")
    parser.add_argument("--precision", choices=["fp16", "fp32"], default="fp16")
    parser.add_argument("--kernels", metavar="SIZE", help="only runs one batch, for the attention kernel's own words")
    arguments = parser.parse_args()
    if fault := cuda_fault():
        print(f"no GPU to measure on: {fault}", file=sys.stderr)
        return 2
    if arguments.kernels:
        opened(arguments.kernels, arguments.precision, "cuda").run_here(texts(LENGTHS["128"](1024)))
        return 0
    results = {size: measured(size, arguments.precision) for size in arguments.size or ["base", "large"]}
    write("gpu", results, details={"card": card(), "precision": arguments.precision})
    return 0 if all(result["parity"]["holds"] for result in results.values()) else 1


def card() -> str:
    """Name, driver, and clocks under no load, as the driver's own tool gives them."""
    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,memory.total"
    finished = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return finished.stdout.strip()


def measured(size: str, precision: str) -> dict[str, Any]:
    """Parity, kernels and rates of one model size; prints them as they come."""
    runtime = opened(size, precision, "cuda")
    known = parity(runtime, opened(size, "fp32", "cpu"))
    print(f"\n{size} {precision}, parity with fp32 on the CPU: {known}")
    if not known["holds"]:
        return {"parity": known}
    said = kernels(size, precision)
    print("\n".join(said))
    rates = {mix: {tokens: rate(runtime, lengths(tokens)) for tokens in TOKENS} for mix, lengths in LENGTHS.items()}
    head = ["tokens/s in a batch of", *map(str, TOKENS)]
    print(table(head, [[mix, *(one["tokens_per_second"] for one in by_size.values())] for mix, by_size in rates.items()]))
    return {"parity": known, "kernels": said, "rates": rates}


def opened(size: str, precision: str, device: str) -> Runtime:
    runtime = Runtime(open_artifact(artifact(size, precision, device), device), threads=0 if device == "cpu" else 1)
    runtime.open()
    return runtime


def texts(lengths: list[int]) -> list[Tokens]:
    return mixes.texts(lengths, vocabulary=30522)


def parity(gpu: Runtime, cpu: Runtime) -> dict[str, Any]:
    """[CLS] vectors against the CPU's fp32, and whether five runs of one batch give the same bits."""
    sequences = texts(mixes.MIXES["mixed: 32 of 5..60"] + [512, 300, 129])
    runs = [np.concatenate([row["cls"] for row in gpu.run_here(sequences)[0] if row is not None]) for _ in range(5)]
    wanted = np.concatenate([row["cls"] for row in cpu.run_here(sequences)[0] if row is not None])
    products = (runs[0] * wanted).sum(axis=1) / np.linalg.norm(runs[0], axis=1) / np.linalg.norm(wanted, axis=1)
    smallest = float(products.min())
    return {
        "holds": smallest >= 0.9999,
        "smallest_cosine": smallest,
        "largest_difference": float(np.abs(runs[0] - wanted).max()),
        "repeatable": all(np.array_equal(runs[0], run) for run in runs),
        "self_test": gpu.self_test(),
    }


def kernels(size: str, precision: str) -> list[str]:
    """What ONNX Runtime says of the attention kernel that it chose."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--kernels", size, "--precision", precision]
    finished = subprocess.run(command, env=os.environ | KERNEL_ENVIRONMENT, capture_output=True, text=True, check=True)
    lines = (finished.stdout + finished.stderr).splitlines()
    return sorted({line for line in lines if "attention" in line.lower() or "sdpa" in line.lower()})


def rate(runtime: Runtime, lengths: list[int]) -> dict[str, float]:
    """Of the session alone, its inputs on the host, and of the runtime with packing and splitting; the best of ten runs."""
    sequences = texts(lengths)
    batch = pack(sequences, CUMULATIVE_LENGTHS)
    session, names = runtime._session, sorted(batch.outputs)
    alone = min(timed(lambda: session.run(names, batch.feeds)) for _ in range(10))
    whole = min(timed(lambda: runtime.run_here(sequences)) for _ in range(10))
    return {
        "tokens_per_second": batch.tokens / alone,
        "sequences_per_second": len(lengths) / alone,
        "with_packing_tokens_per_second": batch.tokens / whole,
    }


if __name__ == "__main__":
    sys.exit(main())
