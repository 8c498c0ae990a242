"""`benchmarks/gpu.sh`: measures the service on a GPU, of each size in this order: self-test, parity and repeatability,
tokens per second of the engine, and the whole server by the number of workers.

Refuses to start without a GPU. Each size has a process of its own, since a fault of CUDA ends it. A part that fails
leaves its error in the results, and the next part is measured; without self-test or parity there is no further part.
`--device cpu` rehearses the same code on a tiny model.
"""

import argparse
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.gpu import engine
from benchmarks.gpu.plan import PLANS, GpuPlan
from benchmarks.gpu.server import measure_server
from benchmarks.harness.checkpoints import SIZES, artifact, artifact_folder
from benchmarks.harness.machine import update
from packbert.service.artifact import open_artifact
from packbert.service.engine.session import why_cuda_unavailable

SELF_TEST, PARITY = "self-test", "parity"
REQUIRED = (SELF_TEST, PARITY)  # parts without which a graph is not measured further
Part = tuple[str, Callable[[], Any]]  # name, what measures it


def main() -> int:
    arguments = parse_arguments()
    if arguments.device == "cuda" and (fault := why_cuda_unavailable()):
        print(f"no GPU to measure on: {fault}", file=sys.stderr)
        return 2
    plan = PLANS[arguments.device]
    plan = replace(plan, sizes=tuple(arguments.size or plan.sizes), precision=arguments.precision or plan.precision)
    return measure_size(plan) if arguments.alone else measure_all(plan)


def measure_all(plan: GpuPlan) -> int:
    """Measures each size in a process of its own; the exit code."""
    failed = []
    for size in plan.sizes:
        for precision, device in ((plan.precision, plan.device), ("fp32", "cpu")):
            artifact(size, precision, device)
        options = ["--device", plan.device, "--precision", plan.precision, "--size", size, "--alone"]
        if code := subprocess.run([sys.executable, "-m", "benchmarks.gpu", *options], check=False).returncode:
            failed.append(f"{size} (exit code {code})")
    print(f"\nfailed: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def measure_size(plan: GpuPlan) -> int:
    """Measures the only size of `plan`, whose artifacts were exported; the exit code."""
    (size,) = plan.sizes
    failed = measure_parts(list_parts(plan, size), partial(keep, plan, size))
    print(f"\n{size}: failed: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(PLANS), default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), action="append", help="base and large unless given")
    parser.add_argument("--precision", choices=["fp16", "fp32"])
    parser.add_argument("--alone", action="store_true", help="one size in this process; it was exported before")
    return parser.parse_args()


def keep(plan: GpuPlan, name: str, found: dict[str, Any]) -> None:
    """Writes what has been measured of a size so far."""
    details = {"card": engine.query_card(plan.device, engine.IDLE), "precision": plan.precision}
    update(plan.output, {name: found}, details=details)


def measure_parts(parts: Iterable[Part], keep: Callable[[dict[str, Any]], None]) -> list[str]:
    """Measures one part after another and calls `keep` after each; returns the names of those that failed.

    A part that raises leaves its traceback in its place. If one of REQUIRED fails, the parts after it are left out.
    """
    found: dict[str, Any] = {}
    failed = []
    for part, measure in parts:
        try:
            found[part] = measure()
            held = part not in REQUIRED or found[part]["holds"]
        except Exception:  # noqa: BLE001 - the parts before and after this one must not be lost with it
            found[part], held = traceback.format_exc(), False
            print(found[part], file=sys.stderr, flush=True)
        keep(found)
        if not held:
            failed.append(part)
            if part in REQUIRED:
                break
    return failed


def list_parts(plan: GpuPlan, size: str) -> Iterator[Part]:
    """The parts that are measured of a size, in their order; each prints what it finds."""
    folder, reference = artifact_folder(size, plan.precision), artifact_folder(size, "fp32")
    chosen, name = open_artifact(folder, plan.device), f"{size} {plan.precision}"
    yield SELF_TEST, lambda: print_finding(f"{name}, self-test", engine.measure_self_test(chosen))
    with engine.open_runner(chosen) as runner:
        title = f"{name}, parity with fp32 on the CPU"
        yield PARITY, lambda: print_finding(title, engine.measure_parity(runner, reference))
        yield "rates", lambda: engine.measure_rates(plan, size, runner)
        yield "under load", lambda: print_finding("under load", engine.query_busy_card(plan, runner))
    if size == plan.main_size:
        yield "server", lambda: measure_server(folder, plan.device, plan.server, plan.clients)


def print_finding(title: str, found: Any) -> Any:
    """Prints `found` and returns it."""
    print(f"\n{title}:", found, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
