"""ARCHITECTURE.md's import rules as a test: a room may use only rooms below it, and a third party lives in the rooms named here."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS = {
    "service": [
        {"errors", "settings", "schemas", "cores", "answers", "reports", "health", "watchdog", "plan", "pulse", "budget", "promise", "presence"},
        {"artifact", "call", "receipt", "wire"},
        {"door", "session", "parcels"},
        {"tokenizer", "waiting", "runtime", "device"},
        {"batcher"},
        {"metrics", "tasks", "remote"},
        {"labels", "serving", "child"},
        {"engine", "front", "supervisor", "routes"},
        {"documentation", "engine_server"},
        {"app"},
        {"server"},
        {"api", "__main__"},
    ],
    "model_export": [
        {"errors", "manifest", "batch", "architecture", "names", "weights", "messages", "machine"},
        {"bundle", "pieces", "portable", "graph", "hub", "centres", "folder"},
        {"formats", "prepacked"},
        {"checkpoint"},
        {"families", "linear", "sentences"},
        {"reference", "attention", "vocabulary", "labels", "scores"},
        {"encoder", "verify", "precision"},
        {"heads"},
        {"export"},
        {"describe"},
        {"__main__"},
    ],
}
BRIDGES = {"model_export.manifest", "model_export.batch", "model_export.machine"}  # all that the service may know of the exporter
ROOMS = {  # third party -> the only modules that may import it
    "fastapi": {"service.app", "service.documentation"},
    "fastapi_offline": {"service.app"},
    "starlette": {"service.app"},
    "uvicorn": {"service.server", "service.receipt"},
    "httptools": {"service.receipt"},
    "uvloop": {"service.engine_server"},
    "pydantic": {"service.schemas", "service.settings", "service.routes", "service.documentation"},
    "pydantic_settings": {"service.settings"},
    "prometheus_client": {"service.metrics"},
    "orjson": {"service.answers", "service.app", "service.front", "service.engine_server"},
    "msgspec": {"service.wire", "service.child"},
    "onnxruntime": {"service.session", "model_export.verify", "model_export.prepacked"},
    "tokenizers": {"service.tokenizer", "model_export.vocabulary", "model_export.pieces"},
    "google": {"model_export.messages"},
    "huggingface_hub": {"model_export.hub"},
    "safetensors": {"model_export.formats"},
    "onnx_ir": {"model_export.graph", "model_export.linear", "model_export.portable"},
    "onnx": {"model_export.portable"},
    "tqdm": {"model_export.reference", "model_export.export"},
    "torch": {"model_export.formats"},
    "transformers": set(),
}
MODULES = sorted(p for package in LEVELS for p in (ROOT / package).glob("*.py") if p.stem != "__init__")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module in LEVELS else {module}
    return found


def level_of(module: str) -> int:
    package, _, room = module.partition(".")
    levels = [i for i, rooms in enumerate(LEVELS[package]) if room in rooms]
    assert levels, f"{module} stands in no level of tests/test_layout.py: give it one"
    return levels[0]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_room_uses_only_rooms_below_it(path: Path) -> None:
    module = name_of(path)
    package = module.split(".")[0]
    for used in imports_of(path):
        if used.split(".")[0] == package:
            assert level_of(used) < level_of(module), f"{module} may not import {used}"
        elif used.split(".")[0] in LEVELS:
            assert used in BRIDGES, f"{module} may not import {used}: the bridges are {sorted(BRIDGES)}"
            assert package == "service"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_third_party_stays_in_its_rooms(path: Path) -> None:
    for used in imports_of(path):
        allowed = ROOMS.get(used.split(".")[0])
        assert allowed is None or name_of(path) in allowed, f"{name_of(path)} may not import {used}"


def test_the_environment_is_read_in_one_place() -> None:
    readers = {name_of(path) for path in MODULES if "environ" in path.read_text("utf-8")}
    assert readers <= {"service.settings", "service.__main__", "service.child"}


def test_nothing_is_left_for_later() -> None:
    for path in MODULES:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            assert not any(word in line for word in ("TODO", "FIXME", "XXX")), f"{path}:{number}"


def test_functions_fit_in_the_eye() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 45, f"{path}:{node.lineno} {node.name} is longer than 45 lines"
