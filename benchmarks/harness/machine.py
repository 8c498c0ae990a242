"""Names the machine, prints a result as a table and writes it as JSON under benchmarks/results."""

import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packbert.service.engine.cpu import available_cores

RESULTS = Path(__file__).parents[1] / "results"
PACKAGES = ("packbert", "onnxruntime-gpu", "onnxruntime", "numpy", "tokenizers", "uvicorn", "torch", "transformers")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")


def machine() -> dict[str, Any]:
    """CPU model, cores, instruction sets that matter to matrix products, versions."""
    return {
        "cpu": _cpu_field("model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in INSTRUCTIONS if name in _cpu_field("flags").split()],
        "cores": available_cores(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "date": time.strftime("%Y-%m-%d"),
    }


def write(name: str, result: Any, *, details: dict[str, Any] | None = None) -> None:
    """Writes `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine()} | (details or {}) | {"result": result}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def update(name: str, result: dict[str, Any], *, details: dict[str, Any]) -> None:
    """As `write`, but keeps the parts of an earlier result from the same processor that are not in `result`."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    same = before.get("machine", {}).get("cpu") == machine()["cpu"]
    write(name, (before["result"] if same else {}) | result, details=details)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns; numbers with three significant digits."""
    cells = [list(head)] + [[_format(cell) for cell in row] for row in rows]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = ([row[0].ljust(first), *map(str.rjust, row[1:], widths)] for row in cells)
    return "\n".join(map("  ".join, lines))


def _format(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return str(cell)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
