"""Until its models are loaded a service refuses each request as the route's own errors look, and answers probes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.http.app import create_app
from packbert.service.http.headers import ApiKeys
from packbert.service.http.server import Starting
from packbert.service.settings import Settings
from tests.service.in_process import client_of
from tests.service.modeless import modeless

ANSWERED = {"/", "/health", "/metrics", "/v2", "/v2/health/live"}  # the same as with a model
OF_ONE_MODEL = {f"/models/a/b{path}": path for path in ("/v1/embeddings", "/rerank", "/v2/rerank", "/embed")}
PROBES = ("/ready", "/ping", "/v2/health/ready")


def ask(app: Any, requests: Mapping[str, str]) -> dict[str, httpx.Response]:
    """The response to each path with its method."""

    async def asked() -> dict[str, httpx.Response]:
        async with client_of(app) as client:
            return {path: await client.request(method, path, json={}) for path, method in requests.items()}

    return asyncio.run(asked())


def shape(value: Any) -> Any:
    """The keys of a body, and the types of their values."""
    return {key: shape(one) for key, one in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.parametrize(("line", "code"), [("", "loading"), ("downloading", "exporting")])
def test_until_it_is_loaded_each_route_refuses_in_its_own_shape(line: str, code: str, bert_artifact: Path) -> None:
    settings = Settings(model=str(bert_artifact), access_log=True)  # a line of the log names no model then
    models = modeless(open_artifact(bert_artifact), settings)
    models.refuses, loaded = True, create_app(models)
    starting = Starting(settings, models.metrics)
    starting.line, app = line, starting.make_app(ApiKeys(settings))
    paths = ask(loaded, {"/openapi.json": "GET"})["/openapi.json"].json()["paths"]
    requests = {path: method.upper() for path, methods in paths.items() for method in methods} | {"/docs": "GET"}
    posts = {path: "POST" for path, method in requests.items() if method == "POST"}
    found, draining = ask(app, requests | dict.fromkeys(OF_ONE_MODEL, "POST")), ask(loaded, posts)
    assert {path for path, one in found.items() if one.status_code != 503} == ANSWERED
    for path in [*posts, *OF_ONE_MODEL]:
        refused, expected = found[path], draining[OF_ONE_MODEL.get(path, path)]
        assert (expected.status_code, shape(refused.json())) == (503, shape(expected.json())), path
    for path in found.keys() - ANSWERED - {*PROBES}:
        assert "retry-after" in found[path].headers, path
        assert (line or "loading") in found[path].text, path
    assert {found[path].json()["code"] for path in ("/embed", "/info", "/docs")} == {code}
