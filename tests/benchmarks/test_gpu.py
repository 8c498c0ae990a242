"""`benchmarks/gpu.sh` gets one try on a machine that costs money: what fails there takes nothing else along."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu


def fails() -> Any:
    raise RuntimeError("out of memory")


def of(results: dict[str, Callable[[], Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the parts that failed, and what was kept after each part."""
    kept: list[dict[str, Any]] = []
    return gpu.measured(results.items(), lambda found: kept.append(copy.deepcopy(found))), kept


def test_a_part_that_fails_leaves_its_error_and_the_next_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    failed, kept = of({"parity": lambda: {"holds": True}, "rates": fails, "server": lambda: 7})
    assert failed == ["rates"]
    assert [list(found) for found in kept] == [["parity"], ["parity", "rates"], ["parity", "rates", "server"]]
    assert "RuntimeError: out of memory" in kept[-1]["rates"]
    assert kept[-1]["server"] == 7
    assert "RuntimeError: out of memory" in capsys.readouterr().err


@pytest.mark.parametrize("parity", [lambda: {"holds": False}, fails])
def test_nothing_is_measured_without_parity(parity: Callable[[], Any]) -> None:
    failed, kept = of({"parity": parity, "rates": lambda: 7})
    assert failed == ["parity"]
    assert [list(found) for found in kept] == [["parity"]]


def test_a_card_that_cannot_be_asked_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi" in gpu.card("cuda", gpu.IDLE)
