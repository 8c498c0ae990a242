"""A task's endpoint and the fast path to it, as plain ASGI: keys, admission, limits of a body, errors, counts."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest

from packbert.service.errors import DeadlineExceeded, Overloaded, Unavailable
from packbert.service.http.app import TASKS, create_app
from packbert.service.http.endpoint import TaskEndpoint, TaskFastPath
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.http.headers import ApiKeys
from packbert.service.http.limits import UNCOUNTED_BYTES, BufferedBytes
from packbert.service.http.validation import example_of
from packbert.service.observability.metrics import Metrics
from packbert.service.tasks.flow import Task, TaskResult
from tests.service.http.fake_model import FakeModel, call
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
        path: str = "/embed",
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
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path}
        scope["state"] = {CONNECTION_KEY: ClientConnection(self.buffered)}
        scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        endpoint = TaskEndpoint(backend, TASKS[path], ApiKeys(backend.settings))  # type: ignore[arg-type]  # not all members
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
FULL, LEAVING = {"error": Overloaded("full", retry_after=1)}, {"error": Unavailable("shutting down"), "draining": True}
TOO_LONG, ALL = {"content_length": b"101"}, {"content_length": b"%d" % sum(map(len, LARGE))}
NO_ROOM = {"parts": LARGE, "room": len(LARGE[0]) + 500}
REASONS = {413: "too_large", 499: "client_closed", 500: "internal"}
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], int, str, int]] = {  # model, exchange; status, code, parts left
    "a length over the limit": (SMALL, TOO_LONG, 413, "body_too_large", 1),
    "a length over the limit before a full queue": (SMALL | FULL, TOO_LONG, 413, "body_too_large", 1),
    "a length over the limit while draining": (SMALL | LEAVING, TOO_LONG, 413, "body_too_large", 1),
    "parts over the limit": (SMALL, {"parts": [b"x" * 60] * 5}, 413, "body_too_large", 3),
    "parts up to the limit": (
        SMALL,
        {"content_length": b"100", "parts": [VALID.ljust(60), b" " * 40]},
        500,
        "internal",
        0,
    ),
    "a full queue": (FULL, {"content_length": b"15"}, 429, "overloaded", 1),
    "loading": ({"error": Unavailable("loading")}, {"content_length": b"15"}, 503, "unavailable", 1),
    "draining": (LEAVING, {"parts": [b"{", b"}"]}, 503, "unavailable", 0),
    "a client that leaves": ({}, {"parts": [b"{"], "disconnects": True}, 499, "client_closed", 0),
    "parts without room": ({}, NO_ROOM, 429, "buffers_full", 0),
    "a length without room": ({}, NO_ROOM | ALL, 429, "buffers_full", 2),
    "a small body without room": ({}, {"room": 0, "content_length": b"15"}, 500, "internal", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_request_ends_as_soon_as_its_end_is_certain(name: str) -> None:
    """What reaches the model ends with 500 there."""
    model, exchanged, status, code, unread = ENDS[name]
    exchange = Exchange(FakeModel(**model), **exchanged)
    assert (exchange.status, exchange.error["code"], len(exchange.unread)) == (status, code, unread)
    assert exchange.buffered.bodies == 0
    assert exchange.counted(REASONS.get(status, code))
    assert status != 413 or exchange.error["error"].endswith("(BERT_MAX_BODY_BYTES): split it")
    assert status != 429 or (b"retry-after", b"1") in exchange.sent[0]["headers"]


@pytest.mark.parametrize(
    "sent",
    [
        *(None, b"", b"secret", b"Bearer", b"Bearer secre", b"Bearer secret2", b"Bearer \xff", b"Bearer secret\xff"),
    ],
)
def test_without_the_key_a_request_is_rejected_before_its_body_is_read(sent: bytes | None) -> None:
    headers: dict[str, Any] = {} if sent is None else {"authorization": sent}
    exchange = Exchange(FakeModel(api_key="secret"), **headers)
    assert (exchange.status, exchange.error["code"]) == (401, "unauthorized")
    assert (b"www-authenticate", b"Bearer") in exchange.sent[0]["headers"]
    assert "secret" not in exchange.error["error"]
    assert len(exchange.unread) == 1
    assert exchange.counted("unauthorized")
    assert exchange.backend.admissions == []


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


def test_a_model_without_the_head_is_reported_before_the_body_is_read() -> None:
    backend = FakeModel()
    backend.lacks = "tags"
    exchange = Exchange(backend, path="/tag")
    assert (exchange.status, exchange.error["error"]) == (501, "no tags head")
    assert len(exchange.unread) == 1


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


def test_a_request_refused_before_its_body_leaves_no_stage_behind() -> None:
    exchange = Exchange(FakeModel(error=DeadlineExceeded("late")), content_length=b"15")
    assert exchange.backend.admissions == [15]
    values = render_metrics(exchange.backend.metrics)
    assert values['bert_error_seconds_count{outcome="expired"}'] == 1
    assert [values[f'bert_inflight_http_requests{{stage="{stage}"}}'] for stage in ("receive", "process")] == [0, 0]
    assert json.loads(exchange.sent[1]["body"])["code"] == "deadline"


class FakeApps:
    """A fast path between a FastAPI application and an endpoint that both respond with 204."""

    def __init__(self, path: str = "/health", method: str = "GET", **headers: bytes) -> None:
        scope: dict[str, Any] = {"path": path, "method": method}
        scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        self.request_id = self.called = ""
        self.sent: list[dict[str, Any]] = asyncio.run(
            call(TaskFastPath(self.fallback, {"/embed": self.endpoint}, Metrics()), scope)
        )

    async def fallback(self, scope: Any, _: Any, send: Any) -> None:
        self.called, self.request_id = "fallback", scope["state"]["request_id"]
        await send({"type": "http.response.start", "status": 204, "headers": [(b"x", b"y")]})

    async def endpoint(self, _: Any, __: Any, send: Any) -> None:
        self.called = "endpoint"
        await send({"type": "http.response.start", "status": 204, "headers": []})


@pytest.mark.parametrize("sent", [b"my-id_1", b"x" * 128])
def test_a_valid_request_id_of_the_client_is_kept(sent: bytes) -> None:
    apps = FakeApps(x_request_id=sent)
    assert apps.request_id == sent.decode()
    assert apps.sent[0]["headers"] == [(b"x", b"y"), (b"x-request-id", sent)]


@pytest.mark.parametrize("sent", [b"", b"a b", b"a\r\nset-cookie: x", b"a\n", b"x" * 129, "é".encode()])
def test_a_request_id_that_could_harm_a_log_or_header_is_replaced(sent: bytes) -> None:
    apps = FakeApps(x_request_id=sent)
    assert len(apps.request_id) == 16
    assert apps.request_id != FakeApps().request_id


@pytest.mark.parametrize(
    ("path", "method", "called"),
    [
        *(("/embed", "POST", "endpoint"), ("/embed", "GET", "fallback"), ("/embed/", "POST", "endpoint")),
        *(("/other", "POST", "fallback"), ("/other/", "POST", "fallback"), ("/", "POST", "fallback")),
    ],
)
def test_only_posts_to_the_path_of_a_task_take_the_fast_path(path: str, method: str, called: str) -> None:
    assert FakeApps(path, method).called == called


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (None, {}, 200),
        (None, {b"accept": b"application/x-npy"}, 200),
        (None, {b"content-type": b"text/plain"}, 200),
        (b"{", {}, 400),
        (b"[]", {}, 422),
        (None, {b"x-request-timeout-ms": b"0"}, 422),
        (b"x" * 1001, {}, 413),
    ],
    ids=["valid", "npy", "no content type", "not JSON", "not an object", "timeout", "too large"],
)
def test_the_declared_routes_and_the_fast_path_send_the_same_bytes(
    body: bytes | None, headers: dict[bytes, bytes], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> Task:
        return Task(None, answer)

    async def answer(result: TaskResult) -> Any:
        """A value that none of the response models accepts: they must not validate it."""
        result.truncated, result.tokens = 1, 9
        return np.full((2, 3), 0.5, np.float32)

    for path, spec in TASKS.items():
        monkeypatch.setitem(TASKS, path, replace(spec, task=wraps(spec.task)(read)))
    app: Any = create_app(FakeModel(max_body_bytes=1000))  # type: ignore[arg-type]  # models have more members
    for path, spec in TASKS.items():
        scope = {"method": "POST", "path": path, "headers": [(b"x-request-id", b"mine"), *headers.items()]}
        content = json.dumps(example_of(spec.request_model)).encode() if body is None else body
        fast, declared = (asyncio.run(call(one, dict(scope), content)) for one in (app, app.fallback))
        for message in (fast[0], declared[0]):  # the seconds of formatting differ
            message["headers"] = [one for one in message["headers"] if not one[0].endswith((b"-time", b"-timing"))]
        assert fast == declared, path
        assert fast[0]["status"] == status, path
