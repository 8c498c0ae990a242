"""A task's endpoint and the fast path to it, as plain ASGI: keys, admission, limits of a body, errors, counts."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from packbert.service.errors import Overloaded, Unavailable
from packbert.service.http.app import TASKS
from packbert.service.http.endpoint import TaskEndpoint
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.http.headers import ApiKeys
from packbert.service.http.limits import UNCOUNTED_BYTES, BufferedBytes
from tests.service.http.fake_model import FakeModel
from tests.service.test_metrics import render_metrics, text_of

VALID = b'{"inputs": "a"}'


class Exchange:
    """One POST to /embed, and its response."""

    def __init__(
        self,
        backend: FakeModel,
        *,
        parts: Sequence[bytes] = (VALID,),
        disconnects: bool = False,
        room: int = 2**30,
        **headers: Any,
    ) -> None:
        self.backend = backend
        self.unread = [
            {"type": "http.request", "body": part, "more_body": disconnects or n + 1 < len(parts)}
            for n, part in enumerate(parts)
        ]
        self.sent: list[Any] = []
        self.buffered, self.most_held = BufferedBytes(room, lambda: None), 0
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/embed"}
        scope["state"] = {CONNECTION_KEY: ClientConnection(self.buffered)}
        scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        endpoint = TaskEndpoint(backend, TASKS["/embed"], ApiKeys(backend.settings))  # type: ignore[arg-type]  # not all members
        asyncio.run(endpoint(scope, self.receive, self.send))

    async def receive(self) -> Any:
        self.most_held = max(self.most_held, self.buffered.bodies)
        return self.unread.pop(0) if self.unread else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def error(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.sent[1]["body"])
        return content

    @property
    def reached_the_model(self) -> bool:
        return self.counted("internal")

    def counted(self, reason: str) -> bool:
        return f'bert_errors_total{{reason="{reason}"}} 1.0' in text_of(self.backend.metrics)


SMALL, LARGE = {"max_body_bytes": 100}, [VALID + b" " * UNCOUNTED_BYTES, b" " * 1000]
LOADING = {"error": Unavailable("loading")}
TOO_LONG, ALL = {"content_length": b"101"}, {"content_length": b"%d" % sum(map(len, LARGE))}
NO_ROOM = {"parts": LARGE, "room": len(LARGE[0]) + 500}
REASONS = {413: "too_large", 499: "client_closed", 500: "internal"}
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], int, str, int]] = {  # model, exchange; status, code, parts left
    "a length over the limit": (SMALL, TOO_LONG, 413, "body_too_large", 1),
    "a length over the limit while loading": (SMALL | LOADING, TOO_LONG, 413, "body_too_large", 1),
    "parts over the limit": (SMALL, {"parts": [b"x" * 60] * 5}, 413, "body_too_large", 3),
    "parts up to the limit": (
        SMALL,
        {"content_length": b"100", "parts": [VALID.ljust(60), b" " * 40]},
        500,
        "internal",
        0,
    ),
    "loading": (LOADING, {"parts": [b"{", b"}"]}, 503, "unavailable", 0),
    "a client that leaves": ({}, {"parts": [b"{"], "disconnects": True}, 499, "client_closed", 0),
    "parts without room": ({}, NO_ROOM, 429, "buffers_full", 0),
    "a length without room": ({}, NO_ROOM | ALL, 429, "buffers_full", 2),
    "no key while loading": (LOADING | {"api_key": "secret"}, {"content_length": b"15"}, 401, "unauthorized", 1),
    "a small body without room": ({}, {"room": 0, "content_length": b"15"}, 500, "internal", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_request_ends_as_soon_as_its_end_is_certain(name: str) -> None:
    """What reaches the model ends with 500 there."""
    model, exchanged, status, code, unread = ENDS[name]
    exchange = Exchange(FakeModel(**model), **exchanged)
    assert (exchange.status, exchange.error["code"], len(exchange.unread)) == (status, code, unread)
    assert exchange.buffered.bodies == 0
    values = render_metrics(exchange.backend.metrics)
    assert [values[f'bert_inflight_http_requests{{stage="{stage}"}}'] for stage in ("receive", "process")] == [0, 0]
    assert exchange.counted(REASONS.get(status, code))
    assert status != 413 or exchange.error["error"].endswith("(BERT_MAX_BODY_BYTES): split it")
    assert status != 429 or (b"retry-after", b"1") in exchange.sent[0]["headers"]


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (1, "1"), (1.2, "2"), (2, "2"), (3, "3")])
def test_retry_after_has_whole_seconds_and_no_more_than_the_error_says(seconds: float, header: str) -> None:
    assert Overloaded("full", retry_after=seconds).headers == {"retry-after": header}


def test_an_unexpected_error_has_the_standard_body_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    exchange = Exchange(FakeModel(), x_request_id=b"mine")
    assert (exchange.status, exchange.error["code"], exchange.error["request_id"]) == (500, "internal", "mine")
    assert "FakeModel" not in exchange.error["error"]
    assert "FakeModel" in caplog.text
    assert "mine" in caplog.text
    assert exchange.counted("internal")


def test_the_bytes_of_a_large_body_are_held_until_the_end() -> None:
    exchange = Exchange(FakeModel(), parts=LARGE)
    assert exchange.reached_the_model
    assert exchange.most_held == len(LARGE[0])
    assert exchange.buffered.bodies == 0


class SlowClient(Exchange):
    """Sends its body two seconds after the head, by the clock of the endpoint; `stages`: in flight at that moment."""

    def __init__(self, backend: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        super().__init__(backend)

    async def receive(self) -> Any:
        self.stages = list(self.backend.metrics.cells[:2])
        self.now += 2
        return await super().receive()


def test_the_time_in_which_a_body_arrives_is_not_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SlowClient(FakeModel(), monkeypatch)
    assert client.reached_the_model
    values = render_metrics(client.backend.metrics)
    assert values['bert_error_seconds_count{outcome="failed"}'] == 1
    assert values['bert_error_seconds_sum{outcome="failed"}'] == 0
    assert client.stages == [1, 0]
    assert [values[f'bert_inflight_http_requests{{stage="{stage}"}}'] for stage in ("receive", "process")] == [0, 0]
