"""A command without the packages of its extra: an image has the packages of its own commands only."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

WITHOUT = "import sys; sys.modules[{module!r}] = None; sys.argv = ['packbert', {name!r}]; "
WITHOUT += "from packbert.commands import main; raise SystemExit(main())"


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("serve", "pydantic", "service"),
        ("export", "ml_dtypes", "export"),
        ("client", "httpx", "client"),
    ],
)
def test_a_command_says_which_package_is_missing(name: str, module: str, extra: str) -> None:
    program = WITHOUT.format(module=module, name=name)
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"packbert {name}: {module}")
    assert ended.stderr.endswith(f" is not installed here; install packbert with the extra {extra!r}\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--help"], 0), (["--version"], 0), (["surve"], 2)])
def test_the_command_shows_its_usage(words: list[str], code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "packbert", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert "packbert" in (ended.stderr if code else ended.stdout)
