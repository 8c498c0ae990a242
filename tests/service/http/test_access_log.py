"""The access log has one line for each response, whatever gave it."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.client import ask_once
from packbert.service.http.server import Server
from tests.service.fakes import FakeTime
from tests.service.modeless import play_server

HOST = b" HTTP/1.1\r\nhost: x\r\n"
PREFLIGHT = b"OPTIONS /embed" + HOST + b"origin: https://a.example\r\naccess-control-request-method: POST\r\n\r\n"
BODY = b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
Lines = list[dict[str, Any]]


def lines_of(
    artifact: Path, caplog: pytest.LogCaptureFixture, story: Callable[[int], Awaitable[None]], **settings: Any
) -> Lines:
    async def played(_: Server, port: int, __: FakeTime) -> None:
        await story(port)
        await asyncio.sleep(1)

    with caplog.at_level(logging.INFO, "service.access"):
        play_server(artifact, played, access_log=True, cors_origins="*", **settings)
    return [record.__dict__["fields"] for record in caplog.records if record.name == "service.access"]


@pytest.mark.parametrize(
    ("request_bytes", "method", "route", "status", "code"),
    [
        (b"GET /health" + HOST + b"\r\n", "GET", "/health", 200, None),
        (b"GET /no%20where%0a" + HOST + b"\r\n", "GET", "/no where\n", 404, None),
        (b"PUT /embed" + HOST + b"\r\n", "PUT", "/embed", 405, None),
        (b"POST /embed" + HOST + BODY, "POST", "/embed", 422, "invalid"),
        (PREFLIGHT, "OPTIONS", "/embed", 200, None),
        (b"GET /" + b"x" * 20_000 + HOST + b"\r\n", "GET", "/" + "x" * 20_000, 431, "headers_too_large"),
        (b"POST /embed?key=1" + HOST + b"transfer-encoding: chunked\r\n\r\nZZ", "POST", "/embed", 400, "malformed"),
        (b"GET /x HTTP/2.0\r\n\r\n", "GET", "/x", 505, "malformed"),
        (b"nonsense\r\n\r\n", "", "", 400, "malformed"),
        (b"POST /embed" + HOST + b"content-length: 5\r\n\r\n{", "POST", "/embed", 408, "slow"),
    ],
    ids=["get", "404", "405", "422", "preflight", "431", "query", "505", "400", "408"],
)
def test_every_response_has_a_line(
    bert_artifact: Path,
    caplog: pytest.LogCaptureFixture,
    request_bytes: bytes,
    method: str,
    route: str,
    status: int,
    code: str | None,
) -> None:
    outcomes = []

    async def story(port: int) -> None:
        outcomes.append(await ask_once(port, request_bytes))

    (line,) = lines_of(bert_artifact, caplog, story)
    assert [one.status for one in outcomes] == [status]
    assert (line["method"], line["route"], line["status"], line.get("code")) == (method, route, status, code)
    assert line["client"].startswith("127.0.0.1:")
    assert line["bytes"] == len(outcomes[0].body)
    head = outcomes[0].head
    assert line["id"] == (head.partition(b"\r\nx-request-id: ")[2].partition(b"\r\n")[0].decode())


def test_a_request_whose_client_leaves_has_a_line_with_499(
    bert_artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /embed" + HOST + b"content-length: 5\r\n\r\n{")
            await asyncio.sleep(1)

    (line,) = lines_of(bert_artifact, caplog, story)
    assert (line["method"], line["route"], line["status"], line["bytes"]) == ("POST", "/embed", 499, 0)
    assert line["code"] == "client_closed"
