"""What the import linter cannot say: where third parties may be imported, and how large files and functions may be.

Who may import whom is in pyproject.toml, under [tool.importlinter].
"""

import ast
import sys
import tomllib

from tests.paths import ROOT

PACKAGES = ("service", "model_export")
ALLOWED_IN = {  # third party -> the folders or modules that may import it
    "fastapi": ("packbert.service.http",),
    "fastapi_offline": ("packbert.service.http",),
    "starlette": ("packbert.service.http", "packbert.service.library.app"),
    "httptools": ("packbert.service.http",),
    "uvicorn": ("packbert.service.http",),
    "pydantic": (
        "packbert.service.settings",
        "packbert.service.model_names",
        "packbert.service.flags",
        "packbert.service.tasks",
        "packbert.service.http",
    ),
    "pydantic_core": ("packbert.service.tasks", "packbert.service.http"),
    "prometheus_client": ("packbert.service.observability",),
    "opentelemetry": ("packbert.service.observability.spans",),
    "pythonjsonlogger": ("packbert.service.logs",),
    "orjson": ("packbert.service.http", "packbert.service.workers"),
    "onnxruntime": (
        "packbert.model_export.artifact.prepack",
        "packbert.service.engine.session",
        "packbert.model_export.verification",
        "packbert.model_export.export",
    ),
    "openvino": ("packbert.model_export.artifact.openvino",),
    "tokenizers": (
        "packbert.service.tokenization",
        "packbert.model_export.artifact.special_tokens",
        "packbert.model_export.tokenizer",
        "packbert.model_export.tokenizer_check",
        "packbert.model_export.sentence",
    ),
    "huggingface_hub": ("packbert.model_export.hub",),
    "ml_dtypes": ("packbert.model_export.weights", "packbert.model_export.torch_pickle"),
    "yaml": ("packbert.model_export.checkpoint", "packbert.service.model_names"),
    "safetensors": ("packbert.model_export.weights",),
    "onnx": ("packbert.model_export.graph", "packbert.model_export.verification"),
    "httpx": ("packbert.service.library.client",),
    "pyarrow": ("packbert.service.library.files",),
    "tqdm": (
        "packbert.model_export",
        "packbert.service.library.client_command",
        "packbert.service.library.bulk_command",
    ),
    "numpy": ("packbert",),
}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 60
SOURCES = {path: path.read_text("utf-8") for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
TREES = {
    ".".join(("packbert", *path.relative_to(ROOT).with_suffix("").parts)): ast.parse(text)
    for path, text in SOURCES.items()
}


def imports_of(tree: ast.Module) -> set[str]:
    """The third parties that a module imports, at its top or inside a function."""
    nodes = list(ast.walk(tree))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in found} - sys.stdlib_module_names - {"packbert"}


def test_third_parties_are_imported_only_where_the_table_allows_it() -> None:
    found = {(module, used) for module, tree in TREES.items() for used in imports_of(tree)}
    allowed = {
        (module, used)
        for module, used in found
        for place in ALLOWED_IN.get(used, ())
        if f"{module}.".startswith(f"{place}.")
    }
    assert sorted(found - allowed) == []


def test_the_environment_is_read_only_in_the_settings() -> None:
    readers = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == {"packbert.service.settings", "packbert.service.library.client_command"}


def test_files_are_short_and_nothing_is_left_to_do() -> None:
    assert {str(path): lines for path, text in SOURCES.items() if (lines := text.count("\n")) > MAX_FILE_LINES} == {}
    assert [str(path) for path, text in SOURCES.items() if any(word in text for word in ("TODO", "FIXME", "XXX"))] == []


def test_functions_are_short() -> None:
    functions = {
        f"{module}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in functions.items() if lines > MAX_FUNCTION_LINES} == {}


def test_every_package_says_what_it_holds() -> None:
    assert [module for module, tree in TREES.items() if "__init__" in module and not ast.get_docstring(tree)] == []


def test_a_wheel_has_every_folder_of_the_package() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    folders = {module.rpartition(".")[0] for module in TREES}
    assert set(stated) == folders | {"packbert"}
