"""The folder of the goldens, and the ways to read and write files in it."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).parents[1]
torch.set_grad_enabled(False)  # for all makers


def emptied(folder: Path) -> Path:
    """The `folder`, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def rounded(numbers: Any, digits: int = 7) -> Any:
    """A number, or arrays of numbers as lists; seven digits after the point are a tenth of the tests' tolerance."""
    return round(float(numbers), digits) if np.ndim(numbers) == 0 else [rounded(one, digits) for one in numbers]


def write_json(path: Path, content: Any, *, indent: int | None = None) -> None:
    write(path, json.dumps(content, ensure_ascii=False, indent=indent) + "\n")


def write_cases(path: Path, cases: Sequence[Any]) -> None:
    """JSON with a case per line."""
    write(path, "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    report(path)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    report(path)


def report(path: Path) -> None:
    """Prints the size of a file or of the files in a folder, and lets everybody read them."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in (path, *path.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
    print(f"{path.parent.name}/{path.name}: {sum(file.stat().st_size for file in files) // 1000} kB")
