"""What HTTP clients expect of a server: HEAD, OPTIONS, Date, codings, media types, other origins, useful 404s."""

import asyncio
import gzip
import io
import json
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.http.app import allow_origins

BODY = {"inputs": ["my dog is hairy", "he likes play ##ing"]}


@pytest.mark.parametrize("path", ["/health", "/ready", "/info", "/metrics", "/docs", "/openapi.json"])
def test_head_has_the_headers_of_get_and_no_body(server: httpx.Client, path: str) -> None:
    head, get = server.head(path), server.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert get.content
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/embed", "OPTIONS, POST"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/tag", "OPTIONS, POST"),
        ("/", "GET, HEAD, OPTIONS, POST"),
        ("/v1/models/any", "GET, HEAD, OPTIONS"),
        ("/v2/models/bert", "GET, HEAD, OPTIONS"),
        ("/v2/models/bert/infer", "OPTIONS, POST"),
    ],
)
def test_options_and_a_wrong_method_name_the_allowed_ones(server: httpx.Client, path: str, allowed: str) -> None:
    options, wrong = server.options(path), server.delete(path)
    assert (options.status_code, options.headers["allow"]) == (204, allowed)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [("/embedding", "/embeddings"), ("/fill_mask", "/fill-mask"), ("/v1/embedding", "/v1/embeddings")],
)
def test_an_unknown_path_names_the_nearest_one(server: httpx.Client, path: str, nearest: str) -> None:
    response = server.post(path, json=BODY)
    assert response.status_code == 404
    assert f"did you mean {nearest}?" in response.text
    assert "/ready" in response.text


def test_an_unknown_path_like_no_other_names_all(server: httpx.Client) -> None:
    error = server.get("/zzzzzzzzzz").json()["error"]
    assert "did you mean" not in error
    assert "/embed, /fill-mask" in error


def test_each_response_has_a_date(server: httpx.Client) -> None:
    for response in (server.get("/health"), server.post("/embed", json=BODY), server.get("/nowhere")):
        assert parsedate_to_datetime(response.headers["date"]).tzinfo is not None


@pytest.mark.parametrize(
    "accept", ["application/x-npy", "application/x-npy, application/json;q=0.9", "Application/X-NPY"]
)
def test_npy_is_chosen_among_several_media_types(server: httpx.Client, accept: str) -> None:
    response = server.post("/embed", json=BODY, headers={"accept": accept})
    assert response.headers["content-type"] == "application/x-npy"
    expected = np.asarray(server.post("/embed", json=BODY).json(), np.float32)
    assert np.array_equal(np.load(io.BytesIO(response.content)), expected)


def test_a_gzip_body_has_the_answer_of_its_content(server: httpx.Client) -> None:
    packed = gzip.compress(json.dumps(BODY).encode())
    response = server.post("/embed", content=packed, headers={"content-encoding": "gzip"})
    assert response.content == server.post("/embed", json=BODY).content


def test_another_coding_is_refused_with_a_way_out(server: httpx.Client) -> None:
    response = server.post("/embed", content=b"{}", headers={"content-encoding": "br"})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported")
    assert "send gzip" in response.json()["error"]


def test_pages_and_metrics_are_compressed_where_the_client_accepts_it(server: httpx.Client) -> None:
    for path in ("/metrics", "/openapi.json", "/info"):
        packed = server.get(path, headers={"accept-encoding": "gzip"})
        plain = server.get(path, headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
    assert "content-encoding" not in server.get("/health", headers={"accept-encoding": "gzip"}).headers


async def call(app: Any, method: str, **headers: str) -> dict[str, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await app({"type": "http", "method": method, "path": "/embed", "headers": named}, receive, send)
    return {"status": sent[0]["status"], **{name.decode(): value.decode() for name, value in sent[0]["headers"]}}


async def teapot(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_pages_of_the_allowed_origins_may_call_the_service_and_read_its_headers() -> None:
    app = allow_origins(teapot, ["https://page.example"])
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "x-api-key, content-type"}
    preflight = asyncio.run(call(app, "OPTIONS", origin="https://page.example", **asked))
    assert preflight["status"] == 200
    assert preflight["access-control-allow-origin"] == "https://page.example"
    assert "POST" in preflight["access-control-allow-methods"]
    assert "x-api-key" in preflight["access-control-allow-headers"]
    response = asyncio.run(call(app, "POST", origin="https://page.example"))
    assert (response["status"], response["access-control-allow-origin"]) == (418, "https://page.example")
    assert {"server-timing", "x-model-digest", "x-npy-rows", "inference-header-content-length"} <= set(
        response["access-control-expose-headers"].split(", ")
    )


def test_pages_of_other_origins_may_not() -> None:
    app = allow_origins(teapot, ["https://page.example"])
    assert "access-control-allow-origin" not in asyncio.run(call(app, "POST", origin="https://other.example"))
    preflight = asyncio.run(call(app, "OPTIONS", origin="https://other.example", access_control_request_method="POST"))
    assert preflight["status"] == 400
    assert allow_origins(teapot, []) is teapot
