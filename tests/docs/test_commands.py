"""The commands and programs of the pages work, as far as a machine without a network and a cluster can tell."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools.marks import pages
from packbert.model_export.__main__ import _parser
from packbert.service.flags import variables_of
from packbert.service.library import bulk_command, client_command
from tests.deploy.chart import render
from tests.docs.conftest import ClientOf
from tests.docs.stranger import ELSEWHERE, PAGES, steps_of
from tests.paths import README, ROOT

SHOWN = [*pages(), ROOT / "examples" / "README.md", ROOT / "deploy" / "ray" / "README.md"]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAME_ELSEWHERE = re.compile(r"\.zh|README\.zh-CN|new-task")  # Chinese pages have the programs of the English ones
PROGRAMS = [page for page in SHOWN if PROGRAM.search(page.read_text("utf-8")) and not SAME_ELSEWHERE.search(page.name)]
PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "serve": variables_of,
    "export": lambda words: _parser("export").read(words),
    "describe": lambda words: _parser("describe").read(words),
    "download": lambda words: _parser("download").read(words),
    "bulk": bulk_command.parse_arguments,
    "client": client_command.parse_arguments,
}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))


def commands_of(page: Path) -> list[str]:
    shown = [step.command for step in steps_of(page) if not step.is_program]
    return [re.sub(r"\s+#.*", "", one) for one in shown if not one.startswith("curl localhost:8080")]


STRANGER = [step for page in PAGES for step in steps_of(page)]
RUN = {re.sub(r"\s+#.*", "", step.command) for step in STRANGER if step.runs}
COMMANDS = [(page, command) for page in SHOWN for command in commands_of(page) if command not in RUN]


def check_packbert(words: list[str]) -> None:
    PARSERS[words[0]](words[1:])


def check_make(words: list[str]) -> None:
    assert all(re.search(rf"^{word}:", MAKEFILE, re.MULTILINE) for word in words if "=" not in word)


def check_python(words: list[str]) -> None:
    assert (ROOT / words[0]).is_file()


def check_docker(words: list[str]) -> None:
    if words[0] == "compose":
        profiles = {name for one in COMPOSE["services"].values() for name in one.get("profiles", [])}
        named = [word for word in words[1:] if word in {*COMPOSE["services"], *profiles}]
        assert named or words[-1] == "up"
        return
    place = next(at for at, word in enumerate(words) if word.startswith("packbert"))
    image, tag = words[place].split(":")
    assert f"--tag {image}:$(RUNTIME)" in MAKEFILE
    assert tag in ("cpu", "cuda")
    command = {"packbert-serve": ["serve"], "packbert-export": ["export"], "packbert": []}[image]  # the entry points
    check_packbert([*command, *words[place + 1 :]])


def check_helm(words: list[str]) -> None:
    assert words[:3] == ["install", "bert", "deploy/helm/packbert"]
    given: dict[str, Any] = {}
    for option, value in zip(words[3::2], words[4::2], strict=True):
        assert option == "--set"
        path, _, content = value.partition("=")
        *groups, last = path.split(".")
        reduce(lambda place, group: place.setdefault(group, {}), groups, given)[last] = content
    assert render(given)["Deployment"]


def check_ray(words: list[str]) -> None:
    module, _, _ = words[1].partition(":")
    assert words[0] == "run"
    assert (ROOT / "deploy" / "ray" / f"{module}.py").is_file()


CHECKS = {
    "packbert": check_packbert,
    ".venv/bin/packbert": check_packbert,
    "make": check_make,
    "python": check_python,
    ".venv/bin/python": check_python,
    "docker": check_docker,
    "helm": check_helm,
    "serve": check_ray,
}


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda one: one.stem if isinstance(one, Path) else one[:40])
def test_a_command_of_a_page_has_arguments_that_exist(page: Path, command: str) -> None:
    words = shlex.split(command.rpartition("&& ")[2])
    while "=" in words[0]:  # variables before a command
        words.pop(0)
    assert words[0] in CHECKS, f"{page.name}: no check for {words[0]}"
    CHECKS[words[0]](words[1:])


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(
    page: Path, artifact_of: Callable[[str], Path], client_of: ClientOf, tmp_path: Path
) -> None:
    text = "\n\n".join(PROGRAM.findall(page.read_text("utf-8")))
    url = str(client_of("sample").base_url).rstrip("/")
    for shown, real in (("ARTIFACT", "sample"), ("artifacts/sample", "sample")):
        text = text.replace(f'"{shown}"', f'"{artifact_of(real)}"')
    program = tmp_path / "program.py"
    program.write_text(text.replace("http://localhost:8080", url), "utf-8")
    done = subprocess.run([sys.executable, str(program)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_task_of_the_worked_example_answers(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    page = ROOT / "docs" / "contribute" / "new-task.md"
    asked = (
        "from packbert.service.library import engine\n"
        'engine.ROUTES["/distinct"] = native.ROUTES["/distinct"]\n'
        f'with engine.Engine.from_model("{artifact_of("sample")}") as model:\n'
        '    print(model.wait(model.run("/distinct", inputs=["my dog", "my dog", "the train was late"])))\n'
        "from pathlib import Path\n"
        "from tests.service.in_process import ask, serve_in_process\n"
        "from tests.service.test_metrics import render_metrics\n"
        f'with serve_in_process(Path("{artifact_of("sample")}")) as client:\n'
        '    print(ask(client, "/distinct", inputs=["my dog", "my dog", "the train was late"]))\n'
        '    print("/distinct" in client.get("/openapi.json").json()["paths"])\n'
        "    counted = render_metrics(client.backend.metrics)\n"
        'print(counted[\'bert_requests_total{status="200",task="distinct"}\'])\n'
    )
    program = tmp_path / "program.py"
    program.write_text("\n".join([*PROGRAM.findall(page.read_text("utf-8")), asked]), "utf-8")
    command, with_tests = [sys.executable, str(program)], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=with_tests, capture_output=True, text=True)
    assert (done.stdout.split("\n"), done.returncode) == (["[0, 2]", "[0, 2]", "True", "1.0", ""], 0), done.stderr


def test_what_sets_all_up_and_what_a_stranger_does_not_run_is_run_by_the_checks() -> None:
    """`make test` itself, and all that README and the page `start` print by `make test-start`."""
    left = [step.command for step in STRANGER if not step.runs]
    assert [begin for begin in ELSEWHERE if not any(one.startswith(begin) for one in left)] == []
    start = README.read_text("utf-8").partition("## Start\n")[2].partition("With Docker")[0]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    called = {target for words in re.findall(r"^ *make (.+)$", script, re.MULTILINE) for target in words.split()}
    assert re.findall(r"^\$ make (.+)$", start, re.MULTILINE) == ["serve", "test"]
    assert {"test", "test-start"} <= called
    assert {"git clone --depth 1 ADDRESS packbert", "make serve", ".venv/bin/packbert serve ./my-checkpoint"} <= RUN
    assert "`make serve RUNTIME=cpu`" in start
    targets = called | {by.removeprefix("make ") for by in ELSEWHERE.values() if by.startswith("make ")}
    assert [target for target in targets if f"\n{target}:" not in MAKEFILE] == []


@pytest.mark.parametrize(
    ("kept", "words", "installs"),
    [
        ("installed-cpu", "export", []),
        ("installed-cpu", "dev", ["requirements-dev-cpu.lock"]),
        ("installed-cpu", "install RUNTIME=cuda", ["requirements.lock"]),
        ("installed", "export", []),
        ("installed", "dev", ["requirements-dev.lock"]),
        ("installed", "install RUNTIME=cpu", ["requirements-cpu.lock"]),
    ],
)
def test_a_command_without_a_runtime_keeps_the_installed_one(
    kept: str, words: str, installs: list[str], tmp_path: Path
) -> None:
    for file in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("requirements*.lock")):
        shutil.copyfile(file, tmp_path / file.name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / kept).touch()
    make = ["make", "--dry-run", *words.split()]
    done = subprocess.run(make, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=True, capture_output=True, text=True)
    assert re.findall(r"-r (\S+)", done.stdout) == installs


def test_no_page_names_an_install_from_an_index() -> None:
    """The package is not published: an index has no such name, or a stranger's package."""
    index = re.compile(r"\b(pip|uv|pipx)\b[\w -]* (install|add)\b[^\n]*[\s'\"]packbert(\[|['\"\s]|==|$)")
    assert index.search('pip install "packbert[client]"')
    assert index.search("uv add packbert\n")
    assert not index.search('pip install ".[client]"')
    folders = ("docs", "deploy", "docker", "examples", "benchmarks", "service", "model_export", "training")
    files = [*ROOT.glob("*.*"), ROOT / "Makefile", *(file for one in folders for file in (ROOT / one).rglob("*.*"))]
    kinds = ("", ".md", ".py", ".yml", ".yaml", ".sh", ".service", ".toml", ".js")
    shown = [file for file in files if file.is_file() and file.suffix in kinds]
    assert len(shown) > 300
    assert [str(one) for one in shown if index.search(one.read_text("utf-8"))] == []
