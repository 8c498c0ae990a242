"""What `python -m benchmarks.engine` keeps between its parts, and what it compares ours with."""

import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.engine.contenders import prepare
from benchmarks.engine.contenders.turns import clock_for, compared, fastest, interleaved, ratios
from benchmarks.engine.peak import LOOPS, SOURCE, peaks
from benchmarks.engine.progress import Arrangements, Progress
from benchmarks.engine.tables import is_accurate
from benchmarks.harness import checkpoints
from benchmarks.harness.machine import INSTRUCTIONS
from packbert.model_export.errors import ExportError

RATES = {
    "tokens": 100,
    "ceiling int8": 4000.0,
    "ours fp32": 1000.0,
    "ours int8": 3000.0,
    "ONNX Runtime padded fp32": 500.0,
    "ONNX Runtime buckets fp32": 800.0,
    "ONNX Runtime padded int8": 1500.0,
    "CTranslate2 buckets int8": 2000.0,
    "OpenVINO static int8": 3300.0,
    "OpenVINO ragged int8": 4500.0,
}


def test_ours_is_compared_within_its_precision_with_engines_that_are_accurate_enough() -> None:
    accurate = {"OpenVINO ragged int8", "CTranslate2 buckets int8"}.__contains__
    assert dict(compared(RATES, "int8", accurate)) == {
        "ceiling": "ceiling int8",
        "one padded batch": "ONNX Runtime padded int8",
        "sorted batches": "CTranslate2 buckets int8",
        "best other": "OpenVINO ragged int8",
    }
    assert dict(compared(RATES, "fp32"))["sorted batches"] == "ONNX Runtime buckets fp32"
    assert set(dict(compared(RATES, "bf16")).values()) == {""}


def test_ours_and_the_ceiling_are_no_others() -> None:
    assert fastest(RATES, "int8") == "OpenVINO ragged int8"
    assert fastest({"ours bf16": 1.0, "ceiling bf16": 2.0}, "bf16") == ""


def test_ratios_leave_out_what_was_not_measured() -> None:
    found = ratios(RATES)
    assert found["int8 / ceiling"] == pytest.approx(0.75)
    assert found["fp32 / one padded batch"] == pytest.approx(2)
    assert not {name for name in found if name.startswith("bf16")} | ({"fp32 / ceiling"} & set(found))


def test_a_contender_without_a_measured_accuracy_is_not_accurate() -> None:
    assert not is_accurate("int8")("unknown buckets int8")
    assert is_accurate("int8")("ours int8")
    assert is_accurate("fp32")("ONNX Runtime padded fp32")  # as the sorted batches of the same graph


def test_one_thread_is_timed_by_its_processor_time() -> None:
    assert clock_for(1) is time.process_time
    assert clock_for(2) is time.perf_counter


def test_a_run_in_parts_goes_on_and_other_options_begin_again(tmp_path: Path) -> None:
    first = Progress("engine", 3, folder=tmp_path)
    first.add("alone", {"tokens_per_second": {}}, {"ours bf16": "no such instruction"}, 40.0)
    second = Progress("engine", 3, folder=tmp_path)
    assert list(second.measured) == ["alone"]
    assert second.left_out == {"ours bf16": "no such instruction"}
    assert second.longest_seconds == 40
    assert Progress("engine", 5, folder=tmp_path).measured == {}
    second.remove()
    assert Progress("engine", 3, folder=tmp_path).measured == {}


def test_arrangements_are_found_once_for_each_mix(tmp_path: Path) -> None:
    first = Arrangements("base", tmp_path)
    first.add("alone", "CTranslate2 buckets int8", (2, 128))
    first.add("alone", "ours int8", None)
    second = Arrangements("base", tmp_path)
    assert tuple(second.of("alone", "CTranslate2 buckets int8") or ()) == (2, 128)
    assert second.of("alone", "ours int8") is None
    assert second.of("other", "CTranslate2 buckets int8") is None


def test_the_first_run_counts_only_without_another() -> None:
    times = {"slow": iter([5.0]), "fast": iter([1.0, 2.0])}
    turns = {name: partial(next, found) for name, found in times.items()}
    first = {"slow": 4.5, "fast": 0.5}
    assert interleaved(turns, 2, first=first) == {"slow": 4.5, "fast": 1.0}


def test_every_loop_of_the_peak_is_of_a_known_instruction_set() -> None:
    names = {f"{precision}_{name}" for precision, sets in LOOPS.items() for name in sets}
    assert all(f"({name}, " in SOURCE.read_text() for name in names)
    assert {name for sets in LOOPS.values() for name in sets} <= set(INSTRUCTIONS)


def test_without_a_compiler_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert peaks(1) == {}


def test_an_artifact_is_exported_again_only_by_another_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[str] = []

    def export(source: Path, folder: Path, *, precision: str, device: str) -> None:
        assert (source / "config.json").is_file()
        assert not folder.exists() or not any(folder.iterdir())  # the exporter refuses what it does not know
        (folder / device).mkdir(parents=True)
        exported.append(precision)

    monkeypatch.setattr(checkpoints, "BUILD", tmp_path)
    monkeypatch.setattr(checkpoints, "export", export)
    assert checkpoints.artifact("tiny", "fp32") == checkpoints.artifact("tiny", "fp32") == tmp_path / "tiny-fp32"
    monkeypatch.setattr(checkpoints, "exporter_digest", lambda: "another")
    checkpoints.artifact("tiny", "fp32")
    assert exported == ["fp32", "fp32"]


def test_a_precision_that_cannot_be_exported_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def artifact(size: str, precision: str) -> Path:
        if precision == "bf16":
            raise ExportError("bf16 needs AVX512-BF16")
        return Path(f"{size}-{precision}")

    monkeypatch.setattr(prepare, "artifact", artifact)
    made, refused = prepare.our_artifacts("tiny")
    assert made == {"fp32": Path("tiny-fp32"), "int8": Path("tiny-int8")}
    assert refused == {"bf16": "bf16 needs AVX512-BF16"}
    monkeypatch.setattr(prepare, "EVERYWHERE", ["bf16"])
    with pytest.raises(ExportError, match="AVX512-BF16"):
        prepare.our_artifacts("tiny")
