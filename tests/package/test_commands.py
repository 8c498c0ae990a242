"""A command without the packages of its extra: an image has the packages of its own commands only."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

WITHOUT = "import sys; sys.modules[{module!r}] = None; from bert_service.commands import {name}; {name}()"


@pytest.mark.parametrize(
    ("name", "command", "module", "extra"),
    [
        ("serve", "bert-service", "pydantic", "service"),
        ("export", "bert-export", "ml_dtypes", "export"),
        ("client", "bert-client", "httpx", "client"),
    ],
)
def test_a_command_says_which_package_is_missing(name: str, command: str, module: str, extra: str) -> None:
    program = WITHOUT.format(module=module, name=name)
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"{command}: {module}")
    assert ended.stderr.endswith(f" is not installed here; pip install 'bert-service[{extra}]'\n")
    assert ended.stderr.count("\n") == 1
