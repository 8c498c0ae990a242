"""Do the tests notice? Changes one place of the source at a time, in a copy, and runs the tests of its module.

    python -m tests.mutants PATH ... [--count 20] [--seed 0]

The places are a random sample over the files and folders named; the seed repeats it. The tests of a module are the
files of tests that name it, those that import it, what users see (the recorded answers, the families) and the folder
of tests that mirrors its own, until the first failure. The exit code is 1 if a mutant survives.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.paths import ROOT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "build", "*.egg-info")
NOT_RUN = (Path("tests/docs"), Path("tests/deploy"))  # a user of the service sees neither
SEEN = {"service": "tests/contract/test_answers.py", "model_export": "tests/export/test_families.py"}  # by users
TIMEOUT_SECONDS = 900  # a mutant that hangs is killed
PAIRS: tuple[tuple[type[ast.AST], Any], ...] = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.And, ast.Or),
)
OTHER = dict(PAIRS) | {other: one for one, other in PAIRS}  # each becomes the other of its pair


class Mutant(NamedTuple):
    file: str
    node: ast.expr | ast.stmt
    text: str  # in the place of the node


def mutants_of(file: str, tree: ast.AST) -> Iterator[Mutant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and (other := OTHER.get(type(node.ops[0]))):
            yield Mutant(file, node, f"({ast.unparse(ast.Compare(node.left, [other()], node.comparators))})")
        elif isinstance(node, ast.BinOp) and (other := OTHER.get(type(node.op))):
            yield Mutant(file, node, f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})")
        elif isinstance(node, ast.BoolOp):
            yield Mutant(file, node, f"({ast.unparse(ast.BoolOp(OTHER[type(node.op)](), node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(file, node, ast.unparse(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield Mutant(file, node, repr(not node.value if isinstance(node.value, bool) else node.value + 1))
        elif isinstance(node, ast.IfExp):
            yield Mutant(file, node, f"({ast.unparse(node.orelse)})")
        elif isinstance(node, ast.Return) and node.value is not None:
            yield Mutant(file, node, "return None")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            yield Mutant(file, node, "pass")


def apply(source: str, mutant: Mutant) -> str:
    """The source with the mutant's text; `ast` counts columns in bytes."""
    lines, node = source.encode().splitlines(keepends=True), mutant.node
    assert node.end_lineno is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + mutant.text.encode() + after).decode()


def tests_of(file: str, root: Path) -> list[str]:
    """Those with the name of the module, those that import it, what users see, and the folder that mirrors its own."""
    module, path = "packbert." + file.removesuffix(".py").replace("/", "."), Path(file)
    package, _, name = module.rpartition(".")
    wanted = (f"from {module} import", f"import {module}", f"from {package} import {name}")

    def is_beside(test: Path) -> bool:
        mirror = Path("tests") / path.parent
        return test.parent == mirror if path.parts[0] == "service" else test.is_relative_to("tests/export")

    every = (one.relative_to(root) for one in sorted((root / "tests").rglob("test_*.py")))
    tests = [one for one in every if not any(map(one.is_relative_to, NOT_RUN))]
    named = [one for one in tests if path.stem in one.stem]
    importing = [one for one in tests if any(words in (root / one).read_text("utf-8") for words in wanted)]
    beside = [one for one in tests if is_beside(one)]
    return list(dict.fromkeys(map(str, [*named, *importing, SEEN[path.parts[0]], *beside])))


def failing(copy: Path, tests: list[str]) -> str:
    """The first test that fails; empty if none does."""
    cache = f"cache_dir={copy.parent / 'cache'}"  # of artifacts, by what their export depends on
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", cache, *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{TIMEOUT_SECONDS} s"
    found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)( - |$)", ended.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {ended.returncode}" if ended.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    files = [file for path in asked.paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    found = [one for file in files for one in mutants_of(str(file), ast.parse(file.read_text("utf-8")))]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)  # the package is links to the folders
        for mutant in random.Random(asked.seed).sample(found, min(asked.count, len(found))):
            source = (ROOT / mutant.file).read_text("utf-8")
            (copy / mutant.file).write_text(apply(source, mutant), "utf-8")
            killer = failing(copy, tests_of(mutant.file, copy))
            (copy / mutant.file).write_text(source, "utf-8")
            survived += not killer
            shown = " ".join((ast.get_source_segment(source, mutant.node) or "").split())[:100]
            place = f"{mutant.file}:{mutant.node.lineno}"
            met = f"killed by {killer}" if killer else "SURVIVED"
            sys.stdout.write(f"{place}: {shown} -> {mutant.text[:100]}: {met}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{survived} of {min(asked.count, len(found))} mutants survived\n")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
