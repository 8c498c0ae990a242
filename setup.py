"""Builds the wheel: `service` and `model_export` lie below `bert_service` in it, so that they take no other name.

In a checkout the two are packages of their own, and import each other by these names. In the wheel the same modules
are `bert_service.service...` and `bert_service.model_export...`: the build rewrites the import statements, and nothing
else. An installation with `pip install -e` uses the checkout as it is.
"""

import ast
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = "bert_service"
MOVED = ("service", "model_export")


def rewrite_imports(source: str) -> str:
    """The source with `from service.x import y` as `from bert_service.service.x import y`, line by line as before.

    Raises ValueError for `import service.x`, which binds the name `service`: no statement here needs it.
    """
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and (names := [one.name for one in node.names if is_moved(one.name)]):
            raise ValueError(f"line {node.lineno} imports {names[0]}: write `from ... import ...`")
        if isinstance(node, ast.ImportFrom) and not node.level and is_moved(node.module or ""):
            line, start = lines[node.lineno - 1], node.col_offset
            before = f"from {node.module}".encode()
            if not line[start:].startswith(before):
                raise ValueError(f"line {node.lineno}: write `{before.decode()} import ...` with single spaces")
            lines[node.lineno - 1] = line[:start] + f"from {ROOT}.{node.module}".encode() + line[start + len(before) :]
    return b"".join(lines).decode()


def is_moved(module: str) -> bool:
    return module.split(".")[0] in MOVED


def build() -> None:
    """Runs setuptools, which is imported here because a test imports this file without it."""
    from setuptools import find_packages, setup
    from setuptools.command.build_py import build_py

    class BuildPy(build_py):
        """Copies modules as setuptools does, and rewrites their imports."""

        def run(self) -> None:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # modules of an earlier build would get into the wheel
            super().run()

        def build_module(self, module: Any, module_file: Any, package: Any) -> Any:
            written, copied = super().build_module(module, module_file, package)
            path = Path(written)
            path.write_text(rewrite_imports(path.read_text("utf-8")), "utf-8")
            return written, copied

    moved = find_packages(include=[pattern for name in MOVED for pattern in (name, f"{name}.*")])
    if any("editable" in argument for argument in sys.argv):  # the packages stay where they are
        setup(packages=[ROOT, *moved])
        return
    setup(
        packages=[ROOT, *(f"{ROOT}.{package}" for package in moved)],
        package_dir={f"{ROOT}.{name}": name for name in MOVED},
        package_data={
            ROOT: ["py.typed"],
            f"{ROOT}.model_export": ["sample/*"],
            f"{ROOT}.service.http.page": ["static/**/*"],
        },
        cmdclass={"build_py": BuildPy},
    )


if __name__ == "__main__":
    build()
