"""`benchmarks/gpu.sh` gets one run on a rented machine: a part that fails must not stop the other parts."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.__main__ import measure_parts
from benchmarks.gpu.engine import IDLE, query_card
from benchmarks.gpu.plan import PLANS
from tests.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def fail() -> Any:
    raise RuntimeError("out of memory")


def measure(results: dict[str, Callable[[], Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the parts that failed, and what was written after each part."""
    kept: list[dict[str, Any]] = []
    return measure_parts(results.items(), lambda found: kept.append(copy.deepcopy(found))), kept


def test_a_failed_part_leaves_its_error_and_the_next_part_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    failed, kept = measure({"parity": lambda: {"holds": True}, "rates": fail, "server": lambda: 7})
    assert failed == ["rates"]
    assert [list(found) for found in kept] == [["parity"], ["parity", "rates"], ["parity", "rates", "server"]]
    assert "RuntimeError: out of memory" in kept[-1]["rates"]
    assert kept[-1]["server"] == 7
    assert "RuntimeError: out of memory" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["self-test", "parity"])
@pytest.mark.parametrize("result", [lambda: {"holds": False}, fail])
def test_nothing_is_measured_without_self_test_and_parity(part: str, result: Callable[[], Any]) -> None:
    failed, kept = measure({part: result, "rates": lambda: 7})
    assert failed == [part]
    assert [list(found) for found in kept] == [[part]]


def test_the_script_asks_for_the_python_of_the_images_locks() -> None:
    locked = re.search(r"^FOR_IMAGES = .*--python-version (\S+)", MAKEFILE, re.MULTILINE)
    assert locked
    script, page = ((ROOT / "benchmarks" / name).read_text("utf-8") for name in ("gpu.sh", "results/gpu.md"))
    assert f"sys.version_info < ({locked[1].replace('.', ', ')})" in script
    assert f"Python {locked[1]} or newer" in script.partition("set -euo")[0]
    assert f"Python {locked[1]} or newer" in page


def test_a_size_that_fails_does_not_stop_the_next_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, codes = list[str](), {"tiny": 139, "base": 0}

    def run(command: list[str], *, check: bool) -> SimpleNamespace:  # noqa: ARG001
        started.append(command[command.index("--size") + 1])
        return SimpleNamespace(returncode=codes[started[-1]])

    monkeypatch.setattr(gpu, "artifact", lambda *_: None)
    monkeypatch.setattr("subprocess.run", run)
    assert gpu.measure_all(replace(PLANS["cpu"], sizes=("tiny", "base"))) == 1
    assert started == ["tiny", "base"]
    assert "failed: tiny (exit code 139)" in capsys.readouterr().out


def test_without_nvidia_smi_the_card_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi" in query_card("cuda", IDLE)
