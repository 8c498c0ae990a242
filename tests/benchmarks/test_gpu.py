"""`benchmarks/gpu.sh` gets one run on a rented machine: a part that fails must not stop the other parts."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.__main__ import measure_parts
from benchmarks.gpu.card import IDLE, query_card
from benchmarks.gpu.plan import PLANS


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


def test_both_graphs_are_measured_and_one_that_fails_does_not_stop_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started, codes = list[str](), {"packed": 139, "plain": 0}
    (tmp_path / "gpu-rehearsal.json").write_text('{"result": {}}', "utf-8")

    def run(command: list[str], *, check: bool) -> SimpleNamespace:  # noqa: ARG001
        started.append(command[-1])
        return SimpleNamespace(returncode=codes[command[-1]])

    monkeypatch.setattr(gpu, "artifact", lambda *_: None)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    monkeypatch.setattr("subprocess.run", run)
    assert gpu.measure_all(PLANS["cpu"]) == 1
    assert started == ["packed", "plain"]
    assert "failed: packed of tiny (exit code 139)" in capsys.readouterr().out


def test_the_rates_of_both_graphs_are_printed_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def rates(tokens_per_second: float) -> dict[str, Any]:
        return {"rates": {"by mix and tokens": {"128": {"1024": {"tokens_per_second": tokens_per_second}}}}}

    result = {"tiny packed": rates(90000.0), "tiny plain": rates(40000.0)}
    (tmp_path / "gpu-rehearsal.json").write_text(json.dumps({"result": result}), "utf-8")
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    gpu.print_graphs(PLANS["cpu"], "tiny")
    assert capsys.readouterr().out.split()[-5:] == ["128", "in", "1024", "90,000", "40,000"]


def test_without_nvidia_smi_the_card_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi" in query_card("cuda", IDLE)
