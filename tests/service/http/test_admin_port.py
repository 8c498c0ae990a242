"""BERT_ADMIN_PORT: /metrics, /info and /docs are on that port and on no other; /health and /ready are on both."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess, free_port
from packbert.service.artifact import open_artifact
from packbert.service.http.app import create_app
from packbert.service.settings import Settings, SettingsError, variables_with
from tests.service.modeless import modeless

PUBLIC, ADMIN = "http://service:8080", "http://service:9000"
ADMIN_ONLY = ["/metrics", "/info", "/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css"]
ON_BOTH = ["/health", "/ready"]


@pytest.fixture(scope="module")
def app(bert_artifact: Path) -> Any:
    settings = Settings(model=str(bert_artifact), admin_port=9000)
    return create_app(modeless(open_artifact(bert_artifact), settings))


def get(app: Any, url: str, method: str = "GET", **more: Any) -> httpx.Response:
    """The transport takes the server's port from the URL, as the server takes it from the socket."""

    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.request(method, url, **more)

    return asyncio.run(sent())


@pytest.mark.parametrize("path", ADMIN_ONLY)
def test_administrative_paths_are_on_the_admin_port_only(app: Any, path: str) -> None:
    assert get(app, ADMIN + path).status_code == 200
    hidden = get(app, PUBLIC + path)
    assert (hidden.status_code, hidden.json()["code"]) == (404, "not_found")
    assert hidden.json()["request_id"] == hidden.headers["x-request-id"]
    named = hidden.json()["error"].split("this server has ")[1].split(", ")
    assert {"/embed", *ON_BOTH} <= set(named)
    assert not set(named) & set(ADMIN_ONLY)


@pytest.mark.parametrize("path", ON_BOTH)
def test_probes_are_on_both_ports(app: Any, path: str) -> None:
    assert [get(app, base + path).status_code for base in (PUBLIC, ADMIN)] == [200, 200]


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v1/models", "/"])
def test_the_admin_port_serves_no_task_and_no_list_of_models(app: Any, path: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    assert get(app, PUBLIC + path, method, json={}).status_code != 404
    refused = get(app, ADMIN + path, method, json={})
    assert refused.status_code == 404
    assert "this server has /docs, /health, /ready, /info, /metrics, and others: /openapi.json" in refused.text


def test_no_header_of_a_request_chooses_the_port(app: Any) -> None:
    forged = {"host": "service:9000", "x-forwarded-port": "9000", "forwarded": "host=service:9000"}
    assert get(app, f"{PUBLIC}/metrics", headers=forged).status_code == 404


def test_the_documentation_has_all_routes_and_no_form_to_send_them(app: Any) -> None:
    paths = get(app, f"{ADMIN}/openapi.json").json()["paths"]
    assert {"/embed", "/v1/models", "/health", "/metrics"} <= set(paths)
    assert '"supportedSubmitMethods": []' in get(app, f"{ADMIN}/docs").text


def test_a_browser_gets_no_page_and_is_sent_to_no_documentation(app: Any) -> None:
    assert get(app, PUBLIC, headers={"accept": "text/html"}).json() == {"status": "ok"}
    assert get(app, f"{PUBLIC}/page/main.js").status_code == 404


def test_a_running_service_has_two_ports(bert_artifact: Path) -> None:
    admin_port = free_port()
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_WORKERS": "2"}
    with (
        ServiceProcess(settings | {"BERT_ADMIN_PORT": str(admin_port)}) as service,
        httpx.Client(base_url=service.url) as public,
        httpx.Client(base_url=f"http://127.0.0.1:{admin_port}") as admin,
    ):
        assert public.post("/embed", json={"inputs": "the cat"}).status_code == 200
        assert 'bert_requests_total{status="200",task="embed"} 1.0' in admin.get("/metrics").text
        assert admin.get("/info").json()["workers"] == 2
        assert admin.get("/ready").json() == public.get("/ready").json() == {"status": "ready"}
        assert public.get("/metrics").status_code == admin.post("/embed", json={"inputs": "a"}).status_code == 404
        assert service.terminate() == 0


def test_a_taken_admin_port_stops_the_start_before_the_artifact() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        variables = variables_with(BERT_MODEL="/nothing", BERT_PORT=str(free_port()), BERT_ADMIN_PORT=str(port))
        ended = subprocess.run(
            [sys.executable, "-m", "packbert", "serve"], env=variables, capture_output=True, text=True
        )
    assert ended.returncode == 1
    assert f"packbert serve: cannot listen on 127.0.0.1:{port} (BERT_HOST, BERT_ADMIN_PORT): " in ended.stderr


def test_one_port_cannot_be_both() -> None:
    with pytest.raises(SettingsError, match="BERT_ADMIN_PORT: 8080 is BERT_PORT too"):
        Settings.from_environment({"BERT_MODEL": "a", "BERT_ADMIN_PORT": "8080"})
