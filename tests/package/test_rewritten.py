"""In the wheel all modules lie below `bert_service`: the same code, beside a user's own package `service`."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import bert_service
from benchmarks.harness.process import ServiceProcess
from setup import MOVED, ROOT, rewrite_imports
from tests import paths
from tests.package.installed import as_vectors, embed_by_library, make_foreign_packages
from tests.test_layout import TREES

TEXTS = ["my dog is hairy", "it rains"]
MODULE_NAME = re.compile(rf"\b(?:{'|'.join(MOVED)})(?:\.[a-z_]+)+")


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules as the wheel has them."""
    folder = tmp_path_factory.mktemp("rewritten")
    for name in (ROOT, *MOVED):
        for path in (paths.ROOT / name).rglob("*.py"):
            inside = path.relative_to(paths.ROOT)
            target = folder / (inside if name == ROOT else ROOT / inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(rewrite_imports(path.read_text("utf-8")), "utf-8")
    return folder


def test_import_statements_are_rewritten_and_nothing_else() -> None:
    source = """# from service.a import b
from service import x
from services import x
from . import service
import numpy, os
def f():
    if 1: from service.a.b import (c,
        d)  # é
    'from service.a import b'
    é = 1; from model_export.artifact import e
"""
    assert rewrite_imports(source) == source.replace("from service import", "from bert_service.service import").replace(
        "1: from service.a.b", "1: from bert_service.service.a.b"
    ).replace("from model_export.", "from bert_service.model_export.")


@pytest.mark.parametrize("source", ["import service.a", "import os, model_export", "from  service import x"])
def test_what_cannot_be_rewritten_ends_the_build(source: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        rewrite_imports(source)


def test_no_string_names_a_module_by_its_place_in_the_checkout() -> None:
    """`python -m NAME` and import_module need `__name__` or `__package__`: in the wheel the name is another one."""
    found = []
    for module, tree in TREES.items():
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                found += [(module, name) for name in MODULE_NAME.findall(node.value) if _is_module(name)]
    assert found == []


def _is_module(name: str) -> bool:
    path = paths.ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_the_library_and_the_service_run_beside_a_package_named_service(
    rewritten: Path, bert_artifact: Path, server: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = make_foreign_packages(tmp_path)
    expected = as_vectors(server.post("/embed", json={"inputs": TEXTS}).json())
    path = {"PYTHONPATH": os.pathsep.join([str(rewritten), str(foreign)])}
    assert np.array_equal(embed_by_library(sys.executable, bert_artifact, foreign, path), expected)
    monkeypatch.chdir(foreign)
    settings = {"BERT_ARTIFACT": str(bert_artifact), "BERT_API_PROCESSES": "1"} | path
    with (
        ServiceProcess(settings, module=f"{ROOT}.service") as process,
        httpx.Client(base_url=process.url) as client,
    ):
        assert np.array_equal(as_vectors(client.post("/embed", json={"inputs": TEXTS}).json()), expected)


def test_the_names_of_the_library_are_loaded_when_they_are_used() -> None:
    assert sorted(bert_service.MODULES) == bert_service.__all__ == dir(bert_service)
    assert all(getattr(bert_service, name).__name__ == name for name in bert_service.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Motor'; it has Client, "):
        _ = bert_service.Motor
    script = "import sys; from bert_service import Client; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "onnxruntime", "tokenizers", "pyarrow"} & set(loaded)
