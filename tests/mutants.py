"""Do the tests notice? Changes one place of the source at a time, in a copy, and runs the tests of its module.

    python -m tests.mutants PATH ... [--count 20] [--seed 0]

The places are a random sample over the files and folders named; the seed repeats it. The tests of a module are the
files of tests that name it or import it, and for a module of service/ the recorded answers of tests/contract, until
the first failure. The exit code is 1 if a mutant survives.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "build", "*.egg-info", "docs", "deploy")
ANSWERS = ROOT / "tests/contract/test_answers.py"
TIMEOUT_SECONDS = 900  # a mutant that hangs is killed
OTHER: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.And: "or",
    ast.Or: "and",
}


class Mutant(NamedTuple):
    file: str
    node: ast.expr | ast.stmt
    text: str  # in the place of the node


def mutants_of(file: str, tree: ast.AST) -> Iterator[Mutant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and (other := OTHER.get(type(node.ops[0]))):
            yield Mutant(file, node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.comparators[0])})")
        elif isinstance(node, ast.BinOp) and (other := OTHER.get(type(node.op))):
            yield Mutant(file, node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.right)})")
        elif isinstance(node, ast.BoolOp):
            yield Mutant(file, node, f"({f' {OTHER[type(node.op)]} '.join(map(ast.unparse, node.values))})")
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


def tests_of(file: str) -> list[str]:
    """Those with the name of the module, those that import it, and last what clients see."""
    module, stem = "packbert." + file.removesuffix(".py").replace("/", "."), Path(file).stem
    package, _, name = module.rpartition(".")
    wanted = (f"from {module} import", f"import {module}", f"from {package} import {name}")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    own = [one for one in files if stem in one.stem or any(words in one.read_text("utf-8") for words in wanted)]
    seen = [ANSWERS] if file.startswith("service/") and ANSWERS not in own else []
    return [str(one.relative_to(ROOT)) for one in own + seen]


def passes(copy: Path, tests: list[str]) -> bool:
    cache = f"cache_dir={copy.parent / 'cache'}"  # of artifacts, by what their export depends on
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", cache, *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


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
            survives = passes(copy, tests_of(mutant.file))
            (copy / mutant.file).write_text(source, "utf-8")
            survived += survives
            shown = " ".join((ast.get_source_segment(source, mutant.node) or "").split())[:100]
            place = f"{mutant.file}:{mutant.node.lineno}"
            sys.stdout.write(f"{'SURVIVED' if survives else 'killed'}  {place}: {shown} -> {mutant.text[:100]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{survived} of {min(asked.count, len(found))} mutants survived\n")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
