"""The library, its commands without the packages of their extras, and both beside packages `service` of a user."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import packbert
from tests import paths
from tests.package.installed import as_vectors, embed_by_library, make_foreign_packages
from tests.serving import running

WITHOUT = "import sys; sys.modules[{module!r}] = None; sys.argv = ['packbert', {name!r}]; "
WITHOUT += "from packbert.commands import main; raise SystemExit(main())"
TEXTS = ["my dog is hairy", "it rains"]


def test_the_library_and_the_service_run_beside_a_package_named_service(
    bert_artifact: Path, server: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = make_foreign_packages(tmp_path)
    expected = as_vectors(server.post("/embed", json={"inputs": TEXTS}).json())
    path = {"PYTHONPATH": os.pathsep.join([str(foreign), str(paths.ROOT)])}
    assert np.array_equal(embed_by_library(sys.executable, bert_artifact, foreign, path), expected)
    monkeypatch.chdir(foreign)
    settings = {"BERT_MODEL": str(bert_artifact)} | path
    with running(settings) as (_, client):
        assert np.array_equal(as_vectors(client.post("/embed", json={"inputs": TEXTS}).json()), expected)


def test_the_library_is_found_in_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    (tmp_path / "packbert").mkdir()  # a clone, which Python takes for a package without a file
    code = "from packbert import Engine, Client; from packbert.service.settings import Settings"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_system_without_posix_is_told_what_to_use() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from packbert import Engine"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: packbert.Engine needs Linux or macOS: on Windows use WSL 2" in ended.stderr


def test_the_names_of_the_library_are_loaded_when_they_are_used() -> None:
    assert sorted(packbert.MODULES) == packbert.__all__ == dir(packbert)
    assert all(getattr(packbert, name).__name__ == name for name in packbert.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Motor'; it has AsyncClient, Client, "):
        _ = packbert.Motor
    script = "import sys; from packbert import Client; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "onnxruntime", "tokenizers", "pyarrow"} & set(loaded)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("serve", "pydantic", "service"), ("export", "ml_dtypes", "export"), ("client", "httpx", "client")],
)
def test_a_command_says_which_package_is_missing(name: str, module: str, extra: str) -> None:
    program = WITHOUT.format(module=module, name=name)
    ended = subprocess.run([sys.executable, "-c", program], cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"packbert {name}: {module}")
    assert ended.stderr.endswith(f" is not installed here; install packbert with the extra {extra!r}\n")
    assert ended.stderr.count("\n") == 1


NO_SERVER = ["client", "embed", "pyproject.toml", "-o", "o.npy", "--url", "http://127.0.0.1:1", "--patience", "0"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "usage: packbert COMMAND"),
        (["--help"], 0, "usage: packbert COMMAND"),
        (["--version"], 0, "packbert "),
        (["surve"], 2, "packbert: there is no command surve (did you mean serve?)\n\nusage: packbert COMMAND"),
        (NO_SERVER, 1, "packbert client: no server answers at http://127.0.0.1:1/info: "),
    ],
)
def test_the_process_of_a_command_ends_with_its_code(words: list[str], code: int, said: str) -> None:
    command = [sys.executable, "-m", "packbert", *words]
    ended = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, (ended.stderr if code else ended.stdout)[: len(said)]) == (code, said)
    assert "Traceback" not in ended.stderr
