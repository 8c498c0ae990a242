"""`benchmarks/gpu.sh` gets one run on a rented machine: a part that fails must not stop the other parts."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu.__main__ import measure_parts
from benchmarks.gpu.card import IDLE, query_card


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


@pytest.mark.parametrize("parity", [lambda: {"holds": False}, fail])
def test_nothing_is_measured_without_parity(parity: Callable[[], Any]) -> None:
    failed, kept = measure({"parity": parity, "rates": lambda: 7})
    assert failed == ["parity"]
    assert [list(found) for found in kept] == [["parity"]]


def test_without_nvidia_smi_the_card_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi" in query_card("cuda", IDLE)
