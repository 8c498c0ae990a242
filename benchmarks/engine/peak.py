"""The processor's peak: operations a second of loops of one instruction (peak.c), all cores at the same time.

No product of matrices reaches it, since it also reads and writes numbers. x86-64 alone; it needs a C compiler, `cc`.
Where either is missing there is no figure, and so for a number type without an instruction of its own.
"""

import ctypes
import platform
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness.checkpoints import BUILD
from benchmarks.harness.machine import instructions

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = BUILD / "peak.so"
LOOPS = {  # precision -> the instruction sets with a loop, `peak.c` has PRECISION_SET for each
    "fp32": ("avx2", "avx512f"),
    "bf16": ("avx512_bf16", "amx_bf16"),
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8"),
}
FIRST_ROUNDS, TURN_SECONDS = 20_000, 0.1


def compile_loops() -> Path | None:
    """The compiled loops; None where they cannot be compiled."""
    compiler = shutil.which("cc")
    if not compiler or platform.machine() != "x86_64":
        return None
    if not LIBRARY.is_file() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
        LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", LIBRARY, SOURCE], check=True)
    return LIBRARY


def peaks(threads: int, turns: int = 5) -> dict[str, float]:
    """Operations a second and core by precision, the best of `turns` turns of `TURN_SECONDS`."""
    path = compile_loops()
    if path is None:
        return {}
    library, found = ctypes.CDLL(str(path.absolute())), {}
    for precision, sets in LOOPS.items():
        loops = [getattr(library, f"{precision}_{name}") for name in sets if name in instructions()]
        best = max((_operations_a_second(loop, threads, turns) for loop in loops), default=0.0)
        if best:
            found[precision] = best
    return found


def _operations_a_second(loop: "ctypes._NamedFuncPointer", threads: int, turns: int) -> float:
    """The mean over the cores of the best turn, while all of them run `loop`."""
    loop.argtypes, loop.restype = (ctypes.c_long,), ctypes.c_double

    def rate(rounds: int) -> float:
        started = time.perf_counter()
        operations: float = loop(rounds)
        return operations / (time.perf_counter() - started)

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(rate, [FIRST_ROUNDS] * threads))
        rounds = max(1, int(FIRST_ROUNDS * TURN_SECONDS / (time.perf_counter() - started)))
        return max(sum(pool.map(rate, [rounds] * threads)) / threads for _ in range(turns))
