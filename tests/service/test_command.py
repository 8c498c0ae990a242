"""The command line: flags in groups, errors in words that name the flag, and two examples for each command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from packbert.model_export.__main__ import cli
from packbert.service import __main__ as service_main
from packbert.service.flags import GROUPS, in_flags, variables_of
from packbert.service.library.bulk_command import main as bulk_main
from packbert.service.library.client_command import main as client_main
from packbert.service.settings import GONE, Settings
from tests.paths import ROOT

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": service_main.main,
    **{name: partial(cli, command=name) for name in ("export", "describe", "download")},
    "bulk": bulk_main,
    "client": client_main,
}


@pytest.fixture
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has no BERT_* variable; those that a command sets, and its handlers of signals, end with the test."""
    for name in (*(f"BERT_{one.upper()}" for one in Settings.model_fields), *GONE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in handlers:
        signal.signal(number, handler)


def run(command: str, *words: str) -> object:
    """The exit code of a command, in this process."""
    try:
        return COMMANDS[command](words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_before_anything_is_read_ends_the_start(number: int, code: int) -> None:
    """Also as the first process of a container, which has no default action."""
    program = (
        "import signal, sys; from packbert.service import __main__ as service; "
        f"service.set_variables = lambda _: signal.raise_signal({int(number)}); sys.exit(service.main())"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        code,
        "packbert serve: stopped before it served; nothing half is left\n",
    )


@pytest.mark.usefixtures("clean_process")
def test_a_signal_during_an_import_in_c_ends_the_start() -> None:
    """Such a module raises ImportError from the exception of the signal."""
    reported: list[str] = []

    def load() -> int:
        raise ImportError("initialization failed") from service_main.Stopped(signal.SIGTERM)

    assert service_main._guard(load, reported.append) == 0
    assert reported == ["stopped before it served; nothing half is left"]


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--model", "org/bert@v1"], {"BERT_MODEL": "org/bert@v1"}),
        (["org/bert"], {"BERT_MODEL": "org/bert"}),
        (["./a=b"], {"BERT_MODEL": "./a=b"}),
        (["en=a/b", "zh=./c=d"], {"BERT_MODELS": "en=a/b zh=./c=d"}),
        (["--max-inputs=7", "--precision", "auto"], {"BERT_MAX_INPUTS": "7", "BERT_PRECISION": "auto"}),
        (["--truncate", "--normalize", "false"], {"BERT_TRUNCATE": "true", "BERT_NORMALIZE": "false"}),
    ],
)
def test_a_flag_sets_the_variable_of_its_setting(words: list[str], variables: dict[str, str]) -> None:
    assert variables_of(words) == variables


def test_each_setting_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(Settings.model_fields)


def test_help_lists_every_setting_but_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        variables_of(["--help"])
    text = capsys.readouterr().out
    assert [title for title in GROUPS if f"\n{title}:\n" not in text] == []
    assert "--port PORT" in text
    assert "--max-body-bytes BYTES" in text
    assert "--drain-seconds SECONDS" in text
    missing = [name for name in Settings.model_fields if f"--{name.replace('_', '-')} " not in text]
    assert missing == ["api_key", "admin_key"]  # all users of a machine can read a command line


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2].splitlines()
    assert len(examples) == 2
    assert all(f"packbert {command} " in line for line in examples)


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (["serve", "--api-key", "a"], {}, "packbert serve: there is no flag --api-key (did you mean --api-key-file?)"),
        (["serve", "--max-input", "7"], {}, "packbert serve: there is no flag --max-input (did you mean --max-inputs"),
        (["serve", "--portt=7"], {}, "packbert serve: there is no flag --portt (did you mean --port?)"),
        (["serve", "a/b", "c/d"], {}, "packbert serve: there is no place for the argument c/d: several models are NA"),
        (["serve", "a/b", "--model", "c/d"], {}, "packbert serve: MODEL and --model name two models: leave one out"),
        (["serve", "--port", "abc"], {}, "packbert serve: --port: abc is not a whole number from 0 to 65535"),
        (["serve"], {"BERT_PORT": "abc"}, "packbert serve: BERT_PORT: abc is not a whole number from 0 to 65535"),
        (
            ["serve", "--update"],
            {"BERT_ARTIFACT": "a"},
            f"packbert serve: BERT_ARTIFACT is no setting any more: {GONE['BERT_ARTIFACT']}; unset it; --update is no",
        ),
        (["serve", "--truncate", "maybe"], {}, "packbert serve: --truncate: maybe is not true or false"),
        (["serve"], {}, "packbert serve: no model is named: name it on the command line or in BERT_MODEL: a hub id"),
        (["serve", "a/b"], {"BERT_MODELS": "c=d"}, "packbert serve: --model and BERT_MODELS are both set"),
        (["bulk", "--model", "a/b", "pyproject.toml", "o.npy"], {"BERT_MODELS": "c=d"}, "packbert bulk: --model and"),
        (["bulk", "pyproject.toml", "o.npy"], {}, "packbert bulk: no model is named"),
        (["bulk", "--skip-error", "a", "b"], {}, "packbert bulk: there is no flag --skip-error (did you mean --skip-e"),
        (["export", "a", "b", "--device", "tpu"], {}, "packbert export: --device: tpu is not one of cpu, cuda"),
        (
            ["export", "a", "b", "--precison=int8"],
            {},
            "packbert export: there is no flag --precison (did you mean --pr",
        ),
        (["client", "embed", "a", "-o", "b", "--patience", "x"], {}, "packbert client: --patience: x is not a number "),
        (["client", "embed", "a", "-o", "b", "--url", "bert"], {}, "packbert client: --url: bert is not http://HOST"),
        (
            ["bulk", "a", "b.csv", "o.npy"],
            {},
            "packbert bulk: there is no place for the argument o.npy in `packbert bulk --model MODEL INPUT OUTPUT ",
        ),
    ],
)
@pytest.mark.usefixtures("clean_process")
def test_an_error_names_the_flag_or_the_variable(
    words: list[str],
    variables: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(*words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err[: len(sentence)], said.err.count("\n")) == ("", sentence, 1)


def test_a_message_names_flags_only_for_what_flags_set() -> None:
    message = "BERT_MAX_WAITING_TOKENS is below BERT_TOKEN_BUDGET"
    assert in_flags(message, {"BERT_TOKEN_BUDGET": "9"}) == "BERT_MAX_WAITING_TOKENS is below --token-budget"
    assert in_flags(listed := "unknown setting BERT_A; known are BERT_PORT", {"BERT_PORT": "9"}) == listed


REPORT = """
import os, subprocess, sys
import packbert.service as service
for stream in (sys.stdout, sys.stderr):
    print("text", file=stream, flush=True)
code = "import json, os, sys; json.dump([os.readlink(f'/proc/self/fd/{n}') for n in range(3)], open(sys.argv[1], 'w'))"
subprocess.run([sys.executable, "-c", code, sys.argv[1]], check=True)
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_null_takes_the_place_of_closed_descriptors(tmp_path: Path, closed: tuple[int, ...]) -> None:
    redirections = " ".join(f"{number}>&-" for number in closed)
    report = tmp_path / "report"
    command = f'exec "$0" "$@" {redirections}'
    finished = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, "-c", REPORT, str(report)],
        check=False,
        stdin=subprocess.PIPE,
        capture_output=True,
    )
    assert (finished.returncode, finished.stderr) == (0, b"" if 2 in closed else b"text\n")
    opened = [number for number, path in enumerate(json.loads(report.read_text())) if path == os.devnull]
    assert opened == list(closed)
