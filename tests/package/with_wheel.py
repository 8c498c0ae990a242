"""The wheel in an environment of its own, beside packages named as those of a checkout: `make test-wheel`.

Its dependencies are those of the environment that runs the test; the build takes setuptools from the package index.
"""

import json
import os
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from tests import paths
from tests.package.installed import as_vectors, embed_by_library, make_foreign_packages, run

TEXTS = ["my dog is hairy", "it rains"]


class Installed(NamedTuple):
    wheel: Path
    commands: Path  # folder of python and the commands
    foreign: Path  # folder of the user's own packages


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    archive = folder / "archive.zip"  # as a download of the repository: without links
    run(["git", "-C", paths.ROOT, "archive", "--format=zip", "--output", archive, "HEAD"], folder, {})
    zipfile.ZipFile(archive).extractall(folder / "packbert")
    run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, folder / "packbert"], folder, {})
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    run([*pip, "--python", python, "install", "--no-deps", wheel], folder, {})
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return Installed(wheel, python.parent, make_foreign_packages(packages))


def test_the_wheel_has_one_name(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"packbert"}
    own = {
        str(path.relative_to(paths.ROOT))
        for name in ("service", "model_export")
        for path in (paths.ROOT / name).rglob("*")
        if path.suffix in (".py", ".typed", ".safetensors", ".json", ".html", ".css", ".js", ".svg")
    }
    packed = {name.removeprefix("packbert/") for name in names}
    assert {name for name in own if not name.endswith("py.typed")} <= packed
    assert "py.typed" in packed


def test_the_wheel_states_both_licences_with_their_texts(installed: Installed) -> None:
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    with zipfile.ZipFile(installed.wheel) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        stated = wheel.read(metadata).decode().splitlines()
        for name in project["license-files"]:
            assert f"License-File: {name}" in stated
            assert wheel.read(metadata.replace("METADATA", f"licenses/{name}")) == (paths.ROOT / name).read_bytes()
    assert f"License-Expression: {project['license']}" in stated


def test_export_service_bulk_client_and_library_run_from_the_wheel(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: httpx.Client
) -> None:
    python, artifact = installed.commands / "python", tmp_path / "artifact"
    run([installed.commands / "packbert", "export", paths.GOLDEN / "bert", artifact], installed.foreign, {})
    expected = as_vectors(server.post("/embed", json={"inputs": TEXTS}).json())
    assert np.array_equal(embed_by_library(python, artifact, installed.foreign, {}), expected)
    source = tmp_path / "in.txt"
    source.write_text("\n".join(TEXTS) + "\n", "utf-8")
    output = tmp_path / "bulk.npy"
    run([installed.commands / "packbert", "bulk", source, output, "--model", artifact], installed.foreign, {})
    assert np.array_equal(np.load(output), expected)
    monkeypatch.chdir(installed.foreign)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for workers in ("1", "2"):
        settings = {"BERT_MODEL": str(artifact), "BERT_WORKERS": workers}
        with ServiceProcess(settings) as process:
            output = tmp_path / f"client-{workers}.jsonl"
            words: list[str | Path] = ["client", "embed", source, "-o", output, "--url", process.url]
            run([installed.commands / "packbert", *words], installed.foreign, {})
            found = as_vectors([json.loads(line) for line in output.read_text("utf-8").splitlines()])
            assert np.array_equal(found, expected)


def test_types_of_the_library_are_known_to_a_checker(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from packbert import Engine\n\n\n"
        "async def main(engine: Engine) -> None:\n"
        "    reveal_type(await engine.embed('a'))\n"
        "    await engine.embed(1)\n",
        "utf-8",
    )
    arguments = ["--python-executable", str(installed.commands / "python"), "--follow-imports=silent", str(program)]
    script = "import sys; from mypy import api; print(api.run(sys.argv[1:])[0])"
    found = run([sys.executable, "-c", script, *arguments], tmp_path, {"MYPY_CACHE_DIR": os.devnull})
    assert "numpy.ndarray" in found
    assert "incompatible type" in found
