"""While a model is exported, probes are answered: alive, not ready, with what the export does."""

import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from packbert.service.errors import Unavailable
from packbert.service.preparing import RETRY_SECONDS
from tests.service.model_cache.helpers import copy_checkpoint, start, stop_exporter

SECONDS = 120  # on a busy machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(client: httpx.Client, path: str, status: int) -> httpx.Response:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            if (response := client.get(path)).status_code == status:
                return response
        except httpx.TransportError:
            pass  # the port is closed between the two servers
    raise AssertionError(f"{path} was not {status} within {SECONDS} s")


def test_a_service_that_exports_its_model_is_alive_and_not_ready(tmp_path: Path) -> None:
    port = free_port()
    variables: dict[str, Any] = {
        "BERT_CACHE": str(tmp_path / "cache"),
        "BERT_HOST": "127.0.0.1",
        "BERT_PORT": str(port),
    }
    command = [sys.executable, "-m", "packbert", "serve", str(copy_checkpoint(tmp_path / "model"))]
    process = start(command, **variables)
    try:
        exporter = stop_exporter(process)
        with ExitStack() as stack, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            assert wait_for(client, "/health", 200).json() == {"status": "ok"}
            ready = client.get("/ready")
            assert (ready.status_code, ready.headers["retry-after"]) == (Unavailable.status, str(RETRY_SECONDS))
            assert "exporting for cpu in fp32" in ready.json()["status"]
            refused = client.post("/embed", json={"inputs": "a"})
            assert (refused.status_code, refused.json()["code"]) == (Unavailable.status, "loading")
            metrics = client.get("/metrics")
            assert (metrics.status_code, metrics.text) == (200, "")
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(b"GET /x")  # and no more, until the end
            assert client.get("/health").status_code == 200
            os.kill(exporter, signal.SIGCONT)
            wait_for(client, "/ready", 200)
            assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
