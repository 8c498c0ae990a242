"""Every line of a process has one format; an access line has the fields of its request and never its text or key."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packbert.service.logs import ACCESS, OnceAMinute, configure_logging, log_access
from packbert.service.settings import Settings
from tests.serving import running


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, access = root.handlers[:], root.level, ACCESS.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ACCESS.setLevel(access)


def configure(**settings: Any) -> None:
    configure_logging(Settings.model_validate({"model": "."} | settings), process="engine")


def test_text_lines_have_the_fields_of_an_access_line_at_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    configure(access_log=True)
    logging.getLogger("another.library").info("started")
    log_access(id="a1", route="/embed", status=200, tokens=7)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO engine another.library started")
    assert second.endswith(" INFO engine service.access request id=a1 route=/embed status=200 tokens=7")


def test_json_lines_have_the_same_fields_and_a_traceback_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(access_log=True, log_format="json")
    log_access(id="a1", route="/embed", status=200, tokenize_ms=0.125)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("service").exception("request %s failed", "a1")
    access, failure = map(json.loads, capsys.readouterr().err.splitlines())
    assert access.pop("time").endswith("+00:00")
    assert access == {
        "level": "INFO",
        "logger": "service.access",
        "process": "engine",
        "message": "request",
        "id": "a1",
        "route": "/embed",
        "status": 200,
        "tokenize_ms": 0.125,
    }
    assert failure["message"] == "request a1 failed"
    assert "ValueError: bad" in failure["exc_info"]


@pytest.mark.parametrize("character", [*map(chr, range(0x20)), "\x7f", "\x85", "\x9b", "\u2028", "\u202e", "\ud800"])
def test_no_character_of_a_client_begins_a_text_line(capsys: pytest.CaptureFixture[str], character: str) -> None:
    configure(access_log=True)
    sent = f"/x{character}2026-11-22 00:00:00,000 INFO service all is well"
    log_access(route=sent)
    logging.getLogger("service").info("request to %s failed", sent)
    try:
        raise ValueError(sent)
    except ValueError:
        logging.getLogger("service").exception("failed")
    lines = capsys.readouterr().err.split("\n")
    assert all(line.isprintable() for line in lines)
    assert len([line for line in lines if line[:1].isdigit()]) == 3


def test_a_field_with_white_space_is_quoted_and_other_scripts_stay(capsys: pytest.CaptureFixture[str]) -> None:
    configure(access_log=True)
    log_access(route='/北京 status=200 "', status=404)
    assert capsys.readouterr().err.endswith(' route="/北京 status=200 \\"" status=404\n')


def test_no_access_line_is_written_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log_access(id="a1")
    assert capsys.readouterr().err == ""


def test_a_service_logs_each_request_with_its_stages(bert_artifact: Path) -> None:
    logs = {"BERT_ACCESS_LOG": "true", "BERT_LOG_FORMAT": "json"}
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_API_KEY": "topsecret"}
    with running(settings | logs, authorization="Bearer topsecret") as (process, client):
        answered = client.post("/embed", json={"inputs": ["my private dog", "is hairy"]})
        client.post("/embed", json={"inputs": ["private"], "pooling": "none such"})
        client.get("/nowhere")
        while "serving bert" not in process.output():  # it is written at the first look after the service was ready
            assert client.get("/ready").status_code == 200
        process.terminate()  # an access line is written after its response
        output = process.output()
    lines = [json.loads(line) for line in output.splitlines()]
    found = {line["route"]: line for line in lines if line["logger"] == "service.access" and line["status"] != 422}
    assert set(found) >= {"/embed", "/nowhere", "/ready"}
    embed = found["/embed"]
    assert (embed["status"], embed["texts"], embed["id"]) == (200, 2, answered.headers["x-request-id"])
    assert embed["tokens"] >= 6
    assert set(embed) >= {"tokenize_ms", "queue_ms", "forward_ms", "format_ms", "total_ms"}
    assert found["/nowhere"]["status"] == 404
    assert [line["code"] for line in lines if line.get("status") == 422] == ["invalid"]
    (serving,) = (line["message"] for line in lines if line["message"].startswith("serving "))  # once, and a sentence
    assert serving == f"serving bert (bert, fp32, cpu) on {process.url}"
    assert any(line["message"].startswith("/embed by default: pooling cls") for line in lines)
    assert "private" not in output
    assert "topsecret" not in output


def test_a_library_has_one_line_a_minute_and_the_others_have_all() -> None:
    once = OnceAMinute("a.library")

    def passes(name: str, seconds: float) -> bool:
        return once.filter(logging.makeLogRecord({"name": name, "created": seconds}))

    assert [passes("a.library.part", 1e9 + seconds) for seconds in (0, 1, 59.9, 60, 119, 121)] == [1, 0, 0, 1, 0, 1]
    assert passes("a.library", 1e9)  # the clock was set back
    assert all(passes(name, 1e9) for name in ("a.library_too", "service", "a") * 2)


@pytest.mark.parametrize(("tracing", "count"), [(True, 1), (False, 2)])
def test_a_service_with_traces_says_once_that_the_collector_is_absent(
    capsys: pytest.CaptureFixture[str], tracing: bool, count: int
) -> None:
    settings = Settings(model=".")
    settings._tracing = tracing
    configure_logging(settings)
    for _ in range(2):
        logging.getLogger("opentelemetry.sdk").error("no collector answers")
    assert len(capsys.readouterr().err.splitlines()) == count
