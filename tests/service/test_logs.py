"""Every line of a process has one format; an access line has the fields of its request and never its text or key."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.logs import ACCESS, configure_logging, log_access
from packbert.service.settings import Settings


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, access = root.handlers[:], root.level, ACCESS.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ACCESS.setLevel(access)


def configure(**settings: Any) -> None:
    configure_logging(Settings.model_validate({"artifact": "."} | settings), process="engine")


def test_text_lines_have_the_fields_of_an_access_line_at_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    configure(access_log=True)
    logging.getLogger("another.library").info("started")
    log_access(id="a1", route="/embed", status=200, tokens=7)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO engine another.library started")
    assert second.endswith(" INFO engine service.access request id=a1 route=/embed status=200 tokens=7")


def test_json_lines_have_no_codes_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure(log_format="json")
    as_uvicorn = {"color_message": "\x1b[36mstarted %d\x1b[0m"}
    logging.getLogger("service").info("started %d", 1, extra=as_uvicorn)
    line = json.loads(capsys.readouterr().err)
    assert set(line) == {"time", "level", "logger", "process", "message"}


def test_no_access_line_is_written_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log_access(id="a1")
    assert capsys.readouterr().err == ""


def test_a_service_logs_each_request_with_its_stages(bert_artifact: Path) -> None:
    settings = {"BERT_ARTIFACT": str(bert_artifact), "BERT_API_KEY": "topsecret"}
    with (
        ServiceProcess(settings | {"BERT_ACCESS_LOG": "true", "BERT_LOG_FORMAT": "json"}) as process,
        httpx.Client(base_url=process.url, headers={"authorization": "Bearer topsecret"}) as client,
    ):
        answered = client.post("/embed", json={"inputs": ["my private dog", "is hairy"]})
        client.post("/embed", json={"inputs": ["private"], "pooling": "none such"})
        client.get("/nowhere")
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
    assert "private" not in output
    assert "topsecret" not in output
