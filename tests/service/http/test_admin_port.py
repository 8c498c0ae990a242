"""BERT_ADMIN_PORT: a second port of a process; what each of both answers is among the recorded answers."""

import socket
from pathlib import Path

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess, free_port
from packbert.service.settings import Settings, SettingsError
from tests.serving import fail_to_serve


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
        assert admin.get("/static-offline-docs/swagger-ui.css").status_code == 200
        assert '"supportedSubmitMethods": []' in admin.get("/docs").text
        assert public.get("/metrics").status_code == admin.post("/embed", json={"inputs": "a"}).status_code == 404
        assert service.terminate() == 0


def test_a_taken_admin_port_stops_the_start_before_the_artifact() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = fail_to_serve({"BERT_MODEL": "/nothing", "BERT_PORT": str(free_port()), "BERT_ADMIN_PORT": str(port)})
    assert ended.returncode == 1
    assert f"packbert serve: cannot listen on 127.0.0.1:{port} (BERT_HOST, BERT_ADMIN_PORT): " in ended.stderr


def test_one_port_cannot_be_both() -> None:
    with pytest.raises(SettingsError, match="BERT_ADMIN_PORT: 8080 is BERT_PORT too"):
        Settings.from_environment({"BERT_MODEL": "a", "BERT_ADMIN_PORT": "8080"})
