"""`benchmarks/gpu.sh`: on a GPU, parity and repeatability first, then which attention kernel runs, tokens per second of the engine, what other ways
to run it would be worth, and at last the whole server: its rate by the number of API processes, and the wait at a tenth of it.

Refuses to start without a GPU: what was not measured has no figure. A part that fails leaves its error in its place, and the next one is measured.
`--device cpu` is a rehearsal of the same code on a tiny model.
"""

import argparse
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.__main__ import timed
from benchmarks.gpu import variants
from benchmarks.gpu.server import Crew, served, show
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import SIZES, artifact
from benchmarks.harness.machine import table, update
from model_export.artifact.batch import Tokens, pack
from service.artifact import open_artifact
from service.engine.calibration import self_test
from service.engine.cuda import why_cuda_unavailable
from service.engine.runner import ModelRunner

KERNEL_ENVIRONMENT = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
IDLE = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,memory.total"
BUSY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
PARITY = "parity"
COLOUR = re.compile(r"\x1b\[\d+m")
ALL_HEADS = frozenset({"cls", "mean", "pooler", "pair", "top_logits", "log_sum_exp"})
SQUAD = {"mean": 177.0, "deviation": 80.0, "longest": 384}
LENGTHS: dict[str, Callable[[int], list[int]]] = {
    "STS-B": lambda tokens: (mixes.STS_B * (1 + tokens // sum(mixes.STS_B)))[: max(1, round(tokens / 14.7))],
    "128": lambda tokens: [128] * max(1, tokens // 128),
    "512": lambda tokens: [512] * max(1, tokens // 512),
    "SQuAD": lambda tokens: mixes.passages(max(1, tokens // 177), **SQUAD),
}
TARGETS = {  # size, lengths -> what is counted, must, dream; of an H200 in fp16
    ("base", "STS-B"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "128"): ("tokens_per_second", 1.4e6, 2.1e6),
    ("base", "512"): ("tokens_per_second", 1.5e6, 1.9e6),
    ("large", "SQuAD"): ("sequences_per_second", 2500.0, 4000.0),
}
Rates = dict[str, dict[int, dict[str, float]]]  # lengths -> tokens in a batch -> what is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How much is measured where."""

    device: str
    precision: str
    sizes: tuple[str, ...]
    whole: str  # the size whose other ways and server are measured too
    tokens: tuple[int, ...]  # in one batch
    rounds: int
    crew: Crew
    output: str  # in benchmarks/results


PLANS = {
    "cuda": Concurrency(
        device="cuda",
        precision="fp16",
        sizes=("base", "large"),
        whole="base",
        tokens=(1024, 4096, 16384, 65536),
        rounds=10,
        crew=Crew(processes=(8, 10, 12), texts=(1, 32), connections=512, clients=6, seconds=10.0),
        output="gpu",
    ),
    "cpu": Concurrency(
        device="cpu",
        precision="fp32",
        sizes=("tiny",),
        whole="tiny",
        tokens=(64, 256),
        rounds=1,
        crew=Crew(processes=(1, 2), texts=(1, 32), connections=8, clients=2, seconds=0.5),
        output="gpu-rehearsal",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=sorted(PLANS), default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), action="append", help="base and large unless given")
    parser.add_argument("--precision", choices=["fp16", "fp32"])
    parser.add_argument(
        "--kernels", metavar="ARTIFACT", type=Path, help="only runs one batch, for the attention kernel's own words"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and (fault := why_cuda_unavailable()):
        print(f"no GPU to measure on: {fault}", file=sys.stderr)
        return 2
    if arguments.kernels:
        with opened(arguments.kernels, arguments.device) as runtime:
            runtime.run_sync(texts(runtime, LENGTHS["128"](1024)))
        return 0
    concurrency = PLANS[arguments.device]
    concurrency = replace(
        concurrency,
        sizes=tuple(arguments.size or concurrency.sizes),
        precision=arguments.precision or concurrency.precision,
    )
    failed = []
    for size in concurrency.sizes:

        def keep(found: dict[str, Any], size: str = size) -> None:
            update(
                concurrency.output,
                {size: found},
                details={"card": card(concurrency.device, IDLE), "precision": concurrency.precision},
            )

        failed += [f"{part} of {size}" for part in measured(parts(concurrency, size), keep)]
    print(f"\nfailed: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def measured(parts: Iterable[tuple[str, Callable[[], Any]]], keep: Callable[[dict[str, Any]], None]) -> list[str]:
    """Measures one part after the other, and keeps what there is after each; the names of those that failed. Without parity the rest is left."""
    found: dict[str, Any] = {}
    failed = []
    for part, measure in parts:
        try:
            found[part] = measure()
            held = part != PARITY or found[part]["holds"]
        except Exception:  # noqa: BLE001 - what was measured before and what can be measured after must not go with it
            found[part], held = traceback.format_exc(), False
            print(found[part], file=sys.stderr, flush=True)
        keep(found)
        if not held:
            failed.append(part)
            if part == PARITY:
                break
    return failed


def parts(concurrency: Concurrency, size: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is measured of a model, in its order; each prints what it finds."""
    folder, reference = artifact(size, concurrency.precision, concurrency.device), artifact(size, "fp32", "cpu")
    with opened(folder, concurrency.device) as runtime:
        yield (
            PARITY,
            lambda: shown(f"{size} {concurrency.precision}, parity with fp32 on the CPU", parity(runtime, reference)),
        )
        yield "kernels", lambda: shown("attention", kernels(folder, concurrency.device))
        yield "rates", lambda: speeds(concurrency, size, runtime)
        yield "under load", lambda: shown("under load", busy_clocks(concurrency, runtime))
        if size == concurrency.whole:
            yield from other_ways(concurrency, runtime)
    if size == concurrency.whole:
        yield "server", lambda: show(served(folder, concurrency.device, concurrency.crew))


def shown(title: str, found: Any) -> Any:
    """Prints it; returns it."""
    print(f"\n{title}:", found, flush=True)
    return found


def card(device: str, fields: str) -> str:
    """Of the first card, as the driver's own tool gives them, or what it says instead."""
    if device == "cpu":
        return "none: a rehearsal on the CPU"
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (finished.stdout + finished.stderr).strip()


@contextmanager
def opened(folder: Path, device: str) -> Iterator[ModelRunner]:
    runtime = ModelRunner(open_artifact(folder, device), threads=0 if device == "cpu" else 1)
    runtime.open()
    yield runtime
    runtime.close()


def texts(runtime: ModelRunner, lengths: list[int], outputs: frozenset[str] = frozenset({"cls"})) -> list[Tokens]:
    return mixes.texts(lengths, vocabulary=runtime.artifact.manifest.sizes["vocabulary"], outputs=outputs)


def parity(gpu: ModelRunner, reference: Path) -> dict[str, Any]:
    """All heads against the CPU's fp32, and whether five runs of one batch give the same bits."""
    sequences = texts(gpu, mixes.MIXES["mixed: 32 of 5..60"] + [512, 300, 129], outputs=ALL_HEADS | {"top_ids"})
    runs = [together(gpu, sequences) for _ in range(5)]
    with opened(reference, "cpu") as cpu:
        wanted = together(cpu, sequences)
    vectors, known = runs[0]["cls"], wanted["cls"]
    smallest = float(
        ((vectors * known).sum(axis=1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(known, axis=1)).min()
    )
    return {
        "holds": smallest >= 0.9999,
        "smallest_cosine": smallest,
        "largest_differences": {head: float(np.abs(runs[0][head] - wanted[head]).max()) for head in sorted(ALL_HEADS)},
        "repeatable": all(np.array_equal(runs[0][head], run[head]) for run in runs for head in ALL_HEADS),
        "self_test": self_test(gpu),
    }


def together(runtime: ModelRunner, sequences: list[Tokens]) -> dict[str, np.ndarray]:
    """Each head's rows of all sequences; raises ValueError where one is not finite."""
    rows = runtime.run_sync(sequences)[0]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise ValueError(f"{len(rows) - len(found)} of {len(rows)} rows are not finite")
    return {head: np.concatenate([row[head] for row in found]) for head in ALL_HEADS}


def speeds(concurrency: Concurrency, size: str, runtime: ModelRunner) -> dict[str, Any]:
    """Rates, and what they must be."""
    rates = {
        mix: {tokens: rate(runtime, lengths(tokens), concurrency.rounds) for tokens in concurrency.tokens}
        for mix, lengths in LENGTHS.items()
    }
    for kind in ("tokens_per_second", "with_packing_tokens_per_second", "sequences_per_second"):
        rows = [[mix, *(one[kind] for one in chunk_by_bytes.values())] for mix, chunk_by_bytes in rates.items()]
        print("\n" + table([f"{kind}, batch of", *map(str, concurrency.tokens)], rows))
    targets = compared(concurrency, size, rates)
    print("\n" + table(["best of", "counted", "must", "dream", "measured"], targets), flush=True)
    return {"by mix and tokens": rates, "targets": targets}


def kernels(folder: Path, device: str) -> list[str]:
    """What ONNX Runtime says of the attention kernel that it chose."""
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


def rate(runtime: ModelRunner, lengths: list[int], rounds: int) -> dict[str, float]:
    """Of the session alone, its inputs on the host, and of the runtime with packing and splitting; the best run of each."""
    sequences = texts(runtime, lengths)
    batch = pack(sequences, runtime.artifact.manifest.layout)
    session, names = runtime._session, sorted(batch.outputs)
    alone = min(timed(lambda: session.run(names, batch.feeds)) for _ in range(rounds + 1))
    whole = min(timed(lambda: runtime.run_sync(sequences)) for _ in range(rounds))
    return {
        "tokens_per_second": batch.tokens / alone,
        "sequences_per_second": len(lengths) / alone,
        "with_packing_tokens_per_second": batch.tokens / whole,
    }


def compared(concurrency: Concurrency, size: str, rates: Rates) -> list[list[Any]]:
    """Rows of lengths, what is counted, must, dream and the best measured; the rehearsal compares with all targets."""
    return [
        [mix, kind, must, dream, max(one[kind] for one in rates[mix].values())]
        for (whose, mix), (kind, must, dream) in TARGETS.items()
        if whose == size or concurrency.device == "cpu"
    ]


def busy_clocks(concurrency: Concurrency, runtime: ModelRunner) -> str:
    """What the card says in the midst of work."""
    sequences = texts(runtime, LENGTHS["128"](concurrency.tokens[-1]))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(card, concurrency.device, BUSY)
        while not asked.done():
            runtime.run_sync(sequences)
    return asked.result()


def other_ways(concurrency: Concurrency, runtime: ModelRunner) -> Iterator[tuple[str, Callable[[], variants.Ratios]]]:
    """Graphs last: what goes wrong inside one can cost the process its GPU."""
    served_artifact = runtime.artifact
    work = {
        f"{mix} in {tokens}": texts(runtime, LENGTHS[mix](tokens))
        for mix in ("STS-B", "128")
        for tokens in concurrency.tokens[:3]
    }
    packed = {title: pack(sequences, served_artifact.manifest.layout) for title, sequences in work.items()}
    yield "options", lambda: compare("options", variants.options(served_artifact, packed, concurrency.rounds))
    yield "ahead", lambda: compare("ahead", variants.ahead(served_artifact, work, concurrency.rounds))
    yield (
        "graphs",
        lambda: compare(
            "graphs", variants.graphs(served_artifact, lambda lengths: texts(runtime, lengths), concurrency.rounds)
        ),
    )


def compare(name: str, ratios: variants.Ratios) -> variants.Ratios:
    """Prints them; returns them."""
    batches = list(next(iter(ratios.values())))
    rows = [[way, *(by[b] for b in batches)] for way, by in ratios.items()]
    print("\n" + table([f"{name}: times faster than the service", *batches], rows), flush=True)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
