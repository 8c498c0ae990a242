"""`--precision auto`: int8, else bf16, if it is fast and its check is within its bound, otherwise fp32."""

import re
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export import export as exporting
from packbert.model_export.__main__ import main
from packbert.model_export.artifact import cpu
from packbert.model_export.artifact.manifest import Manifest
from packbert.model_export.verification import verify
from tests.paths import GOLDEN

AVX2, ALL = {"avx2"}, {"avx2", "avx512_bf16"}
EXACT = r"the smallest cosine of the {} check is 0\.99\d{{3}}"
SPEEDS = r"the export measured ([\d,]+) tokens a second here in bf16, and ([\d,]+) in fp32"
INEXACT = rf"fp32, because {EXACT.format('int8')}, below 0\.999999; "
NO_BF16 = "this processor has neither AVX512-BF16 nor AMX, which bf16 needs: use fp32 or int8"
NO_AVX2 = "this processor has no AVX2, which int8 needs to be fast"
FASTER = rf"bf16, because {EXACT.format('bf16')}, at least 0\.9998, and {SPEEDS}"
FAST = {"avx2": ["int8"], "avx512_bf16": ["bf16"], "amx_bf16": ["bf16"]}  # what is fast with one flag alone
CASES: list[tuple[set[str], dict[str, Any], str]] = [  # the processor's flags, what is changed, the reason
    (AVX2, {}, rf"int8, because {EXACT.format('int8')}, at least 0\.99"),
    (AVX2, {"bound": 0.999999}, INEXACT + NO_BF16),
    (AVX2, {"tolerance": 1e-9}, rf"fp32, because the written int8 artifact does not compute the .*; {NO_BF16}"),
    ({"sse4_2"}, {}, f"fp32, because {NO_AVX2}; {NO_BF16}"),
    (ALL, {"bound": 0.999999, "speed": 1.02}, FASTER),
    (ALL, {"bound": 0.999999, "speed": 1}, INEXACT + SPEEDS),
    (ALL, {"bound": 0.999999, "speed": 0.6}, INEXACT + SPEEDS),
    (
        {"avx512_bf16"},
        {"runtime": "not_installed"},
        f"fp32, because {NO_AVX2}; OpenVINO is not installed, which runs .*",
    ),
]


@pytest.mark.parametrize(("flags", "changed", "reason"), CASES)
def test_the_precision_is_the_first_that_is_fast_and_exact_here(
    flags: set[str],
    changed: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`speed` is bf16's in units of fp32's."""

    def measured(*arguments: Any) -> dict[str, float]:
        fp32 = verify.measure_speeds(*arguments)["fp32"] if changed["speed"] > 1 else 1e4  # measured once
        return {"fp32": fp32, "bf16": fp32 * changed["speed"]}

    monkeypatch.setattr(cpu, "_flags", lambda: flags)
    monkeypatch.setattr(cpu, "BF16_RUNTIME", changed.get("runtime", cpu.BF16_RUNTIME))
    monkeypatch.setattr(exporting, "measure_speeds", measured)
    monkeypatch.setitem(exporting.AUTO_MIN_COSINE, "int8", changed.get("bound", 0.99))
    monkeypatch.setitem(verify.TOLERANCE, "int8", changed.get("tolerance", verify.TOLERANCE["int8"]))
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "auto", "--name", "org/mine"]) == 0
    assert [entry.name for entry in (tmp_path / "artifact").iterdir()] == ["cpu"]
    manifest = Manifest.read(tmp_path / "artifact" / "cpu")
    stated = manifest.assumed["precision"]
    found = re.fullmatch(reason, stated)
    assert found, stated
    assert (manifest.precision, manifest.name) == (reason[:4], "org/mine")
    assert f"assumed precision: {stated}\n" in capsys.readouterr().out
    smallest = min(value for name, value in manifest.verification.items() if name.endswith("_smallest_cosine"))
    assert f"{smallest:.5f}" in stated or manifest.precision == "fp32"
    if found.groups():
        bf16, fp32 = (int(speed.replace(",", "")) for speed in found.groups())
        assert bf16 == pytest.approx(fp32 * changed["speed"], rel=0.01)


@pytest.mark.parametrize("flag", [*FAST, "sse4_2", "asimddp", "avx512_vnni"])
def test_which_processors_are_fast(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: {flag})
    fast = {"int8": cpu.has_fast_int8(), "bf16": cpu.why_bf16_unavailable() == ""}
    assert [precision for precision in fast if fast[precision]] == FAST.get(flag, [])
