"""`--precision auto`: int8, else bf16, if it is fast and its check is within its bound, otherwise fp32."""

from pathlib import Path
from typing import Any

import pytest

from packbert.model_export import export as exporting
from packbert.model_export.__main__ import main
from packbert.model_export.artifact import cpu
from packbert.model_export.artifact.manifest import Manifest
from packbert.model_export.verification import verify
from tests.paths import GOLDEN

NO_BF16 = "this processor has neither AVX512-BF16 nor AMX"


@pytest.fixture
def fast_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which int8 is fast, whatever this one is; int8 is computed right on all."""
    monkeypatch.setattr(exporting, "has_fast_int8", lambda: True)
    monkeypatch.setattr(exporting, "why_bf16_unavailable", lambda: NO_BF16)


def exported(tmp_path: Path) -> Manifest:
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "auto", "--name", "org/mine"]) == 0
    assert [entry.name for entry in (tmp_path / "artifact").iterdir()] == ["cpu"]
    return Manifest.read(tmp_path / "artifact" / "cpu")


@pytest.mark.usefixtures("fast_int8")
def test_int8_where_its_check_is_within_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = exported(tmp_path)
    assert (manifest.precision, manifest.name) == ("int8", "org/mine")
    smallest = min(value for name, value in manifest.verification.items() if name.endswith("_smallest_cosine"))
    reason = f"int8, because the smallest cosine of the int8 check is {smallest:.5f}, at least 0.99"
    assert manifest.assumed["precision"] == reason
    assert f"assumed precision: {reason}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("fast_int8")
def test_fp32_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exporting.AUTO_MIN_COSINE, "int8", 0.999999)
    manifest = exported(tmp_path)
    assert manifest.precision == "fp32"
    reason = manifest.assumed["precision"]
    assert reason.startswith("fp32, because the smallest cosine of the int8 check is 0.99")
    assert f", below 0.999999; {NO_BF16}" in reason


@pytest.mark.usefixtures("fast_int8")
def test_fp32_where_int8_does_not_compute_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verify.TOLERANCE, "int8", 1e-9)
    manifest = exported(tmp_path)
    assert manifest.precision == "fp32"
    assert "the written int8 artifact does not compute the checkpoint's vectors" in manifest.assumed["precision"]


def test_fp32_on_a_processor_without_avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: {"sse4_2"})
    manifest = exported(tmp_path)
    assert manifest.precision == "fp32"
    slow_int8, slow_bf16 = manifest.assumed["precision"].split("; ")
    assert slow_int8 == "fp32, because this processor has no AVX2, which int8 needs to be fast"
    assert slow_bf16 == cpu.why_bf16_unavailable()


@pytest.mark.parametrize(("factor", "precision"), [(1.02, "bf16"), (1, "fp32"), (0.6, "fp32")])
def test_bf16_where_int8_is_not_exact_enough_and_bf16_measured_faster(
    factor: float, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*arguments: Any) -> dict[str, float]:
        found = verify.measure_speeds(*arguments)
        speeds.update(found | {"bf16": found["fp32"] * factor})
        return speeds

    speeds = dict[str, float]()
    monkeypatch.setattr(exporting, "measure_speeds", measured)
    monkeypatch.setattr(exporting, "has_fast_int8", lambda: True)
    monkeypatch.setattr(cpu, "_flags", lambda: {"avx512_bf16"})
    monkeypatch.setitem(exporting.AUTO_MIN_COSINE, "int8", 0.999999)
    manifest = exported(tmp_path)
    assert manifest.precision == precision
    found = f"the export measured {speeds['bf16']:,.0f} tokens a second here in bf16, and {speeds['fp32']:,.0f} in fp32"
    smallest = min(value for name, value in manifest.verification.items() if name.endswith("_smallest_cosine"))
    exact = f"bf16, because the smallest cosine of the bf16 check is {smallest:.5f}, at least 0.9998, and {found}"
    reason = manifest.assumed["precision"]
    assert reason == exact if precision == "bf16" else reason.endswith(f", below 0.999999; {found}")


def test_bf16_is_left_out_where_openvino_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(cpu, "BF16_RUNTIME", "not_installed")
    manifest = exported(tmp_path)
    assert manifest.precision == "fp32"
    assert (
        "OpenVINO is not installed, which runs bf16: install packbert with the extra openvino"
        in manifest.assumed["precision"]
    )


@pytest.mark.parametrize(("flag", "fast"), [("avx2", True), ("sse4_2", False), ("asimddp", False)])
def test_which_processors_are_fast_in_int8(flag: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: {flag})
    assert cpu.has_fast_int8() is fast


@pytest.mark.parametrize(("flag", "fast"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512_vnni", False)])
def test_which_processors_are_fast_in_bf16(flag: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: {flag})
    assert (cpu.why_bf16_unavailable() == "") is fast
