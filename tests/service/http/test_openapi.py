"""What FastAPI documents from the declared routes, without a server."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from packbert.service.http.app import TASKS, create_app
from tests.service.http.test_fast_path import FakeModel, call


def read_document(app: Any) -> bytes:
    scope = {"type": "http", "method": "GET", "path": "/openapi.json", "query_string": b"", "headers": []}
    body: bytes = asyncio.run(call(app, scope))[1]["body"]
    return body


def build_page(**settings: Any) -> dict[str, Any]:
    app: Any = create_app(FakeModel(**settings))  # type: ignore[arg-type]  # models have more members
    page: dict[str, Any] = json.loads(read_document(app))
    return page


@pytest.mark.parametrize(("key", "security"), [("", None), ("secret", [{"key": []}])])
def test_the_tasks_require_a_bearer_token_if_a_key_is_set(key: str, security: Any) -> None:
    paths = build_page(api_key=key)["paths"]
    assert [paths[path]["post"].get("security") for path in TASKS] == [security] * len(TASKS)
    assert "security" not in paths["/health"]["get"]


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
