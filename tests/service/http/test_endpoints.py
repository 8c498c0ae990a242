"""A task's endpoint as plain ASGI with a fake backend: authentication, admission, body limits, disconnects, errors."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from packbert.service.errors import NoSuchHead, Overloaded, ServiceError, Unavailable
from packbert.service.http.app import TASKS
from packbert.service.http.endpoint import TaskEndpoint
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.http.headers import ApiKeys
from packbert.service.http.limits import UNCOUNTED_BYTES, BufferedBytes
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Task
from tests.service.fakes import OnlyModel
from tests.service.test_metrics import text_of

VALID = b'{"inputs": "a"}'


class FakeModel(OnlyModel):
    """Rejects requests with `error`, if there is one; its model always fails with an unexpected error."""

    def __init__(self, *, error: ServiceError | None = None, draining: bool = False, **settings: Any) -> None:
        self.settings = Settings.model_validate({"model": "."} | settings)
        self.metrics = Metrics()
        self.error, self.draining = error, draining
        self.admissions: list[int] = []
        self.manifest = SimpleNamespace(heads=())

    def admit(self, body_bytes: int) -> "FakeModel":
        self.admissions.append(body_bytes)
        if self.error is not None:
            raise self.error
        return self

    @contextmanager
    def answering(self) -> Iterator["FakeModel"]:
        yield self

    def require_head(self, head: str) -> NoReturn:
        raise NoSuchHead(f"no {head} head")


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


@pytest.mark.parametrize("error", [None, Overloaded("full"), Unavailable("loading")])
def test_a_content_length_over_the_limit_is_rejected_before_all_else(error: ServiceError | None) -> None:
    exchange = Exchange(FakeModel(error=error, max_body_bytes=100), content_length=b"101", parts=[b"x"])
    assert (exchange.status, exchange.error["code"]) == (413, "body_too_large")
    assert exchange.error["error"].endswith("(BERT_MAX_BODY_BYTES): split it")
    assert "101 bytes" in exchange.error["error"]
    assert len(exchange.unread) == 1


def test_a_chunked_body_is_rejected_when_it_exceeds_the_limit_and_not_read_further() -> None:
    exchange = Exchange(FakeModel(max_body_bytes=100), parts=[b"x" * 60] * 5)
    assert (exchange.status, exchange.error["code"]) == (413, "body_too_large")
    assert exchange.error["error"].endswith("(BERT_MAX_BODY_BYTES): split it")
    assert len(exchange.unread) == 3
    assert exchange.counted("too_large")


def test_a_body_in_parts_up_to_the_limit_is_read_completely() -> None:
    parts = [VALID + b" " * (60 - len(VALID)), b" " * 40]
    exchange = Exchange(FakeModel(max_body_bytes=100), content_length=b"100", parts=parts)
    assert exchange.reached_the_model
    assert not exchange.unread


@pytest.mark.parametrize(
    "sent",
    [
        *(None, b"", b"secret", b"Bearer", b"Bearer secre", b"Bearer secret2", b"Basic secret", b"Bearer \xff"),
        b"Bearer secret\xff",
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


@pytest.mark.parametrize(
    ("key", "headers"),
    [("secret", {"authorization": b"Bearer secret"}), ("", {}), ("", {"authorization": b"Bearer other"})],
)
def test_with_the_key_or_without_a_configured_key_a_request_is_accepted(key: str, headers: dict[str, Any]) -> None:
    assert Exchange(FakeModel(api_key=key), **headers).reached_the_model


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (1, "1"), (1.2, "2"), (2, "2"), (3, "3")])
def test_retry_after_has_whole_seconds_and_no_more_than_the_error_says(seconds: float, header: str) -> None:
    assert Overloaded("full", retry_after=seconds).headers == {"retry-after": header}


@pytest.mark.parametrize("error", [Overloaded("full", retry_after=2), Unavailable("loading")])
def test_a_request_that_is_not_admitted_is_rejected_before_its_body_is_read(error: ServiceError) -> None:
    exchange = Exchange(FakeModel(error=error), content_length=b"15")
    assert exchange.status == error.status
    assert len(exchange.unread) == 1
    assert exchange.backend.admissions == [15]


def test_while_draining_the_body_is_read_before_the_503_so_that_closing_does_not_reset_the_connection() -> None:
    exchange = Exchange(FakeModel(error=Unavailable("shutting down"), draining=True), parts=[b"{", b"}"])
    assert exchange.status == 503
    assert not exchange.unread


def test_while_draining_a_body_over_the_limit_is_not_read() -> None:
    backend = FakeModel(error=Unavailable("shutting down"), draining=True, max_body_bytes=100)
    assert Exchange(backend, content_length=b"101").status == 413


def test_a_client_that_disconnects_before_the_body_is_complete_is_counted_as_closed() -> None:
    exchange = Exchange(FakeModel(), parts=[b"{"], disconnects=True)
    assert exchange.status == 499
    assert exchange.counted("client_closed")


def test_an_answer_that_cannot_be_counted_is_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: Any) -> list[int]:
        return []

    async def read(*_: Any) -> Task:
        return Task(None, answer)

    def fail(*_: Any, **__: Any) -> None:
        raise IndexError("there is no cell")

    monkeypatch.setitem(TASKS, "/embed", replace(TASKS["/embed"], task=read, of_tei=False))
    monkeypatch.setattr(Metrics, "answered", fail)
    exchange = Exchange(FakeModel())
    assert (exchange.status, exchange.error["code"]) == (500, "internal")
    assert exchange.counted("internal")


def test_an_unexpected_error_gives_the_standard_error_body_and_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = Exchange(FakeModel(), x_request_id=b"mine")
    assert (exchange.status, exchange.error["code"], exchange.error["request_id"]) == (500, "internal", "mine")
    assert "FakeModel" not in exchange.error["error"]
    assert "FakeModel" in caplog.text
    assert "mine" in caplog.text
    assert exchange.counted("internal")


@pytest.mark.parametrize(
    ("path", "head"),
    [("/nsp", "pair"), ("/predict", "labels"), ("/tag", "tags"), ("/answer", "spans"), ("/choose", "choices")],
)
def test_a_model_without_the_head_is_reported_before_the_body_is_read(path: str, head: str) -> None:
    exchange = Exchange(FakeModel(), path=path)
    assert (exchange.status, exchange.error["error"]) == (501, f"no {head} head")
    assert len(exchange.unread) == 1


LARGE = [VALID + b" " * UNCOUNTED_BYTES, b" " * 1000]


def test_the_bytes_of_a_large_body_are_held_until_the_request_has_ended() -> None:
    exchange = Exchange(FakeModel(), parts=LARGE)
    assert exchange.reached_the_model
    assert exchange.most_held == len(LARGE[0])
    assert exchange.buffered.bodies == 0


@pytest.mark.parametrize("length", [b"", b"%d" % sum(map(len, LARGE))], ids=["chunked", "content-length"])
def test_a_body_without_room_is_refused_as_soon_as_that_is_known(length: bytes) -> None:
    exchange = Exchange(FakeModel(), parts=LARGE, room=len(LARGE[0]) + 500, content_length=length)
    assert (exchange.status, exchange.error["code"]) == (429, "buffers_full")
    assert (b"retry-after", b"1") in exchange.sent[0]["headers"]
    assert len(exchange.unread) == (2 if length else 0)
    assert exchange.buffered.bodies == 0
    assert exchange.counted("buffers_full")


def test_a_small_body_is_not_refused_for_the_bytes_of_others() -> None:
    exchange = Exchange(FakeModel(), room=0, content_length=b"15")
    assert exchange.reached_the_model
