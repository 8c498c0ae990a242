"""What the child process shows, and what its end means."""

import io
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tqdm import tqdm

from packbert.service import prepare as exporter
from packbert.service.model_cache import ModelError, find_source


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Shows the text as if a child had written it to stderr; returns the sentence that the child failed with."""
    monkeypatch.setattr(exporter, "PROGRESS_SECONDS", 0.0)

    def shown(text: str) -> str:
        read_end, write_end = os.pipe()
        with os.fdopen(write_end, "w", encoding="utf-8") as stream:
            stream.write(text)
        with os.fdopen(read_end, "rb") as written:
            return exporter._show(written)

    return shown


def bars() -> str:
    """What tqdm writes for a download of two bytes."""
    written = io.StringIO()
    with tqdm(total=2, desc="weights", unit="B", file=written, mininterval=0, ascii=True) as bar:
        bar.update()
        bar.update()
    return written.getvalue()


def test_in_a_log_progress_is_lines_without_bars(show: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert show(bars() + "\x1b[Aa warning\n") == ""
    assert caplog.messages[0].startswith("export: weights: 0% 0/2 [")
    assert caplog.messages[-2].startswith("export: weights: 100% 2/2 [")
    assert caplog.messages[-1] == "export: a warning"
    assert not [message for message in caplog.messages if "|" in message or "\x1b" in message]


def test_in_a_log_progress_is_seldom(
    show: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "PROGRESS_SECONDS", 1e9)
    caplog.set_level(logging.INFO)
    show(bars() + "a warning\n")
    assert caplog.messages == ["export: a warning"]


def test_on_a_terminal_progress_is_what_the_child_wrote(
    show: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    written = bars()
    assert show(written + "packbert export: the checkpoint is damaged\n") == "the checkpoint is damaged"
    assert capsys.readouterr().err == written


def test_a_sentence_after_an_unfinished_bar_is_found(show: Callable[[str], str]) -> None:
    assert show("weights:  50%|##   | 1/2packbert export: the disk is full\n") == "the disk is full"


def test_a_missing_exporter_is_named_with_the_way_out(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.check_exporter(find_source("a/b"))
    monkeypatch.setattr(exporter, "PACKAGES", ("numpy", "no_such_package"))
    fault = "a/b@main is no artifact, and this installation cannot export: no_such_package is missing; install packbert"
    with pytest.raises(ModelError, match=f"^{fault} with the extra"):
        exporter.check_exporter(find_source("a/b"))
    with pytest.raises(
        ModelError, match=f"is a part of an artifact, for one device: name the artifact, {bert_artifact}$"
    ):
        exporter.check_exporter(find_source(str(bert_artifact / "cpu")))


def test_a_child_that_the_system_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="the export failed with exit code 1"):
        exporter.run_exporter(["download", "org/bert"])
