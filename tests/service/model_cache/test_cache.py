"""The cache among several processes: one exports, and whatever ends it leaves nothing half."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from packbert.service.model_cache import Cache, Recipe
from tests.service.model_cache.helpers import (
    LIMITED,
    artifacts_in,
    copy_checkpoint,
    start,
    start_preparing,
    stop_exporter,
    wanted,
)

RECIPE = Recipe(digest="d", name="org/bert", device="cpu", precision="fp32", fast_int8=False, bf16_on="")
SERVICE = "from packbert.service.__main__ import end, main; import sys; end(main(sys.argv[1:]))"


def test_a_process_waits_for_the_one_that_exports(tmp_path: Path) -> None:
    checkpoint, cache = copy_checkpoint(tmp_path / "bert"), tmp_path / "cache"
    with start_preparing(checkpoint, cache) as first:
        exporter = stop_exporter(first)
        with start_preparing(checkpoint, cache) as second:
            assert second.stderr
            assert "waiting for another process" in second.stderr.readline()
            (lock,) = (cache / "locks").iterdir()
            made = copy_checkpoint(cache / "artifacts" / f"bert-{lock.name}" / "cpu")
            (made / "manifest.json").touch()  # as the first one's export
            first.kill()
            os.kill(exporter, signal.SIGCONT)
            output, log = second.communicate()
    assert output.strip() == str(made.parent)
    assert "exporting" not in log


def test_the_export_ends_with_a_service_that_is_killed_and_leaves_nothing(tmp_path: Path) -> None:
    checkpoint, cache = copy_checkpoint(tmp_path / "bert"), tmp_path / "cache"
    variables = {"BERT_MODEL": str(checkpoint), "BERT_CACHE": str(cache), "BERT_PORT": "0"}
    with start([sys.executable, "-c", SERVICE], **variables) as process:
        exporter = stop_exporter(process)
        process.kill()
        with suppress(ProcessLookupError):
            os.kill(exporter, signal.SIGCONT)
        process.communicate()
    with Cache(cache).lock(wanted(checkpoint)[1], lambda: None):  # the export, which has it too, is gone
        assert artifacts_in(cache) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    variables = {"BERT_MODEL": str(copy_checkpoint(tmp_path / "bert")), "BERT_CACHE": str(tmp_path / "cache")}
    with start([sys.executable, "-c", LIMITED + SERVICE, "20000"], BERT_PORT="0", **variables) as process:
        _, log = process.communicate()
    assert process.returncode == 2
    assert re.search(r"^packbert serve: .*/cpu cannot be written: .*which a full disk causes", log, re.MULTILINE)
    assert "Traceback" not in log
    assert artifacts_in(tmp_path / "cache") == []


def test_a_damaged_artifact_of_the_cache_is_named_with_the_way_out(tmp_path: Path) -> None:
    model, cache = copy_checkpoint(tmp_path / "bert"), tmp_path / "cache"
    with start_preparing(model, cache) as process:
        folder = process.communicate()[0].strip()
    (Path(folder) / "cpu" / "model.onnx").write_text("damaged", "utf-8")
    variables = {"BERT_MODEL": str(model), "BERT_CACHE": str(cache), "BERT_PORT": "0"}
    with start([sys.executable, "-m", "packbert", "serve"], **variables) as process:
        _, log = process.communicate()
    assert process.returncode == 2
    assert f"export the checkpoint again (remove {folder}, and the next start does)" in log


@pytest.mark.parametrize("content", ["", "{", "[]", '{"title": "other", "digest": "d"}'])
def test_what_is_damaged_is_not_known(content: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.remember("org/bert@main", digest="d")
    assert cache.recall("org/bert@main")["digest"] == "d"
    (record,) = (tmp_path / "sources").iterdir()
    record.write_text(content, "utf-8")
    assert cache.recall("org/bert@main") == {}


def test_a_folder_without_a_manifest_is_no_artifact(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (cache.artifact(RECIPE) / "cpu").mkdir(parents=True)
    assert cache.find(RECIPE) is None
    assert cache.artifact(RECIPE).name.startswith("org--bert-")


def test_a_child_that_inherits_the_lock_keeps_it(tmp_path: Path) -> None:
    cache, waited = Cache(tmp_path), list[str]()
    with cache.lock(RECIPE, lambda: waited.append("first")) as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])

    def end_child() -> None:
        waited.append("second")
        child.communicate(b"\n")

    with cache.lock(RECIPE, end_child):
        assert waited == ["second"]
