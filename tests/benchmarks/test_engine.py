"""What `python -m benchmarks.engine` compares ours with, and what it measures."""

import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.engine import prepare
from benchmarks.engine.turns import clock_for, interleaved
from benchmarks.harness import checkpoints
from benchmarks.tables import compared, is_accurate
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
    "OpenVINO ragged weights int8": 4500.0,
}


def test_ours_is_compared_within_its_precision_with_engines_that_are_accurate_enough() -> None:
    assert compared(RATES, "int8") == {
        "ceiling": "ceiling int8",
        "one padded batch": "ONNX Runtime padded int8",
        "sorted batches": "",  # CTranslate2 is less accurate than ours
        "best other": "OpenVINO ragged weights int8",
    }
    assert compared(RATES, "fp32")["sorted batches"] == "ONNX Runtime buckets fp32"
    assert set(compared(RATES, "bf16").values()) == {""}


def test_a_contender_without_a_measured_accuracy_is_not_accurate() -> None:
    assert not is_accurate("unknown buckets int8", "int8")
    assert is_accurate("ours int8", "int8")
    assert is_accurate("ONNX Runtime padded fp32", "fp32")  # as the sorted batches of the same graph


def test_one_thread_is_timed_by_its_processor_time() -> None:
    assert clock_for(1) is time.process_time
    assert clock_for(2) is time.perf_counter


def test_the_first_run_counts_only_without_another() -> None:
    times = {"slow": iter([5.0]), "fast": iter([1.0, 2.0])}
    turns = {name: partial(next, found) for name, found in times.items()}
    first = {"slow": 4.5, "fast": 0.5}
    assert interleaved(turns, 2, first) == {"slow": 4.5, "fast": 1.0}


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
