"""The fast path sends task POSTs past FastAPI, with the same result as FastAPI's own routes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from packbert.service.http.app import TASKS, create_app
from packbert.service.http.endpoint import TaskFastPath
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Task, TaskResult
from tests.service.fakes import OnlyModel

Sent = list[dict[str, Any]]


async def call(app: Any, scope: dict[str, Any], body: bytes = b"") -> Sent:
    sent: Sent = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    return sent


class FakeApps:
    """A fast path between a FastAPI application and an endpoint that both respond with 204."""

    def __init__(self, path: str = "/health", method: str = "GET", **headers: bytes) -> None:
        scope: dict[str, Any] = {"type": "http", "path": path, "method": method}
        scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        self.request_id = self.called = ""
        self.sent = asyncio.run(call(TaskFastPath(self.fallback, {"/embed": self.endpoint}, Metrics()), scope))

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
def test_a_request_id_that_could_harm_a_log_or_a_header_is_replaced(sent: bytes) -> None:
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


MANIFEST = SimpleNamespace(
    device="cpu",  # what the dialects read when the application is made
    name="sample",
    heads=("cls", *(spec.head for spec in TASKS.values())),
    labels=(),
    max_tokens=512,
    outputs={"cls": SimpleNamespace(shape=("n", 32))},
    embedding=SimpleNamespace(pooling="cls", normalize=False, kept_dimensions=0),
)


class FakeModel(OnlyModel):
    """Admits every request; `TASKS` with `task` replaced need no more."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings.model_validate({"model": ".", "max_body_bytes": 1000} | settings)
        self.metrics = Metrics()
        self.artifact, self.manifest = SimpleNamespace(manifest=MANIFEST), MANIFEST

    def admit(self, _: int) -> "FakeModel":
        return self

    def require_head(self, head: str) -> None: ...

    @contextmanager
    def answering(self) -> Iterator["FakeModel"]:
        yield self


BODIES = {
    "/nsp": b'{"inputs": {"text": "a", "text_pair": "b"}}',
    **dict.fromkeys(("/score", "/v1/score"), b'{"text_1": "a", "text_2": "b"}'),
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/openai/v1/embeddings"), b'{"input": "a"}'),
    **dict.fromkeys(("/classify", "/pooling", "/api/embed"), b'{"input": "a"}'),
    "/api/embeddings": b'{"prompt": "a"}',
    "/api/show": b'{"model": "a"}',
    "/similarity": b'{"inputs": {"source_sentence": "a", "sentences": ["b"]}}',
    "/rerank": b'{"query": "a", "texts": ["b"]}',
    "/v1/rerank": b'{"query": "a", "documents": ["b"]}',
    "/v2/rerank": b'{"query": "a", "documents": ["b"]}',
    **dict.fromkeys(("/v1/embed", "/v2/embed"), b'{"texts": ["a"]}'),
    "/v1/ranking": b'{"query": {"text": "a"}, "passages": [{"text": "b"}]}',
    "/decode": b'{"ids": [1]}',
    "/answer": b'{"question": "a", "context": "b"}',
    "/choose": b'{"prompt": "a", "choices": ["b"]}',
}


@pytest.mark.parametrize("path", TASKS)
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
def test_the_route_declared_in_fastapi_and_the_fast_path_send_the_same_bytes(
    path: str, body: bytes | None, headers: dict[bytes, bytes], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> Task:
        return Task(None, answer)

    async def answer(result: TaskResult) -> Any:
        """A value that none of the response models accepts: they must not validate it."""
        result.truncated, result.tokens = 1, 9
        return np.full((2, 3), 0.5, np.float32)

    monkeypatch.setitem(TASKS, path, replace(TASKS[path], task=read))
    app: Any = create_app(FakeModel())  # type: ignore[arg-type]  # models have more members
    sent_headers = [(b"x-request-id", b"mine"), *headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": sent_headers}
    content = BODIES.get(path, b'{"inputs": "a"}') if body is None else body
    fast, declared = (asyncio.run(call(one, dict(scope), content)) for one in (app, app.fallback))
    for message in (fast[0], declared[0]):  # the seconds of formatting differ
        message["headers"] = [one for one in message["headers"] if not one[0].endswith((b"-time", b"-timing"))]
    assert fast == declared
    assert fast[0]["status"] == status
