"""What FastAPI documents from the declared routes."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter

from packbert.service.http.app import TASKS, create_app
from packbert.service.http.openapi import INFO_RESPONSE
from tests.service.http.fake_model import FakeModel, call
from tests.service.in_process import ask


def read_document(app: Any) -> bytes:
    return asyncio.run(call(app, "GET", "/openapi.json"))[1]


def build_page(**settings: Any) -> dict[str, Any]:
    app: Any = create_app(FakeModel(**settings))  # type: ignore[arg-type]  # models have more members
    page: dict[str, Any] = json.loads(read_document(app))
    return page


@pytest.mark.parametrize(("key", "security"), [("", None), ("secret", [{"key": []}])])
def test_the_tasks_require_a_bearer_token_if_a_key_is_set(key: str, security: Any) -> None:
    paths = build_page(api_key=key)["paths"]
    assert [paths[path]["post"].get("security") for path in TASKS] == [security] * len(TASKS)
    assert "security" not in paths["/health"]["get"]


def test_every_task_has_a_summary_of_a_sentence() -> None:
    for path, spec in TASKS.items():
        assert spec.summary[:1].isupper(), path
        assert not spec.summary.endswith("."), path


def test_every_error_of_the_protocol_is_documented_as_json_on_every_route() -> None:
    for path, methods in build_page()["paths"].items():
        for operation in methods.values():
            for status in ("408", "431"):
                assert set(operation["responses"][status]["content"]) == {"application/json"}, path


def test_the_document_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app: Any = create_app(FakeModel())  # type: ignore[arg-type]  # models have more members
    built: list[dict[str, Any]] = []

    def build(_: FastAPI) -> dict[str, Any]:
        built.append({"openapi": "3.1.0"})
        return built[-1]

    monkeypatch.setattr(FastAPI, "openapi", build)
    assert [read_document(app) for _ in range(3)] == [b'{"openapi":"3.1.0"}'] * 3
    assert len(built) == 1


def test_openapi_documents_each_response_and_the_deadline(server: httpx.Client) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    operations = {path: next(iter(methods.values())) for path, methods in paths.items()}
    for path, operation in operations.items():
        assert all(one["schema"] for one in operation["responses"]["200"]["content"].values()), path
    assert set(operations["/embed"]["responses"]["200"]["content"]) == {"application/json", "application/x-npy"}
    assert set(operations["/metrics"]["responses"]["200"]["content"]) == {"text/plain", "application/openmetrics-text"}
    (timeout,) = operations["/embed"]["parameters"]
    assert (timeout["in"], timeout["name"], timeout["required"]) == ("header", "x-request-timeout-ms", False)


def test_openapi_documents_every_field_of_info(server: httpx.Client) -> None:
    schema = server.get("/openapi.json").json()["components"]["schemas"]["InfoResponse"]
    info = server.get("/info").json()
    assert set(schema["properties"]) == set(info)
    INFO_RESPONSE.model_validate(info)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill-mask", {"inputs": "the [MASK]"}),
        ("/fill-mask", {"inputs": ["[MASK] [MASK]", "the [MASK]"]}),
        ("/fill-mask", {"inputs": "the [MASK] is big", "targets": ["cat", "unaffable", "北京"]}),
        ("/fill-mask", {"inputs": ["the [MASK] is [MASK] [MASK]", "[MASK]"], "joint": True}),
        ("/score", {"inputs": "unaffable cat", "variant": "original"}),
        ("/score", {"inputs": ["unaffable cat", "a"]}),
        ("/nsp", {"inputs": [["a", "b"]]}),
        ("/attention", {"inputs": "a cat"}),
        ("/tokenize", {"inputs": ["a", ["a", "b"]], "details": True}),
        ("/tokenize", {"inputs": "a", "count": True}),
        ("/embed", {"inputs": ["a", "a cat"], "pooling": "none", "pieces": True, "words": True}),
        ("/embed_all", {"inputs": "a"}),
        ("/embed_sparse", {"inputs": "a", "force": True}),
        ("/v1/embeddings", {"input": ["a"], "encoding_format": "base64"}),
    ],
)
def test_an_answer_fits_its_documented_model(server: httpx.Client, path: str, body: dict[str, Any]) -> None:
    model: Any = TASKS[path].response_model
    TypeAdapter(model).validate_python(ask(server, path, **body))
