"""A server process raises its limit on open files, and makes room for a connection when it is full."""

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.process import ServiceProcess
from service.http import server as server_module
from tests.service.http.test_fast_path import FakeBackend


def test_the_soft_limit_on_open_files_is_raised_to_the_hard_limit(bert_artifact: Path) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    service = ServiceProcess({"BERT_ARTIFACT": str(bert_artifact)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), most))  # inherited by the child process
    try:
        with service:
            (limit,) = (
                line
                for line in Path(f"/proc/{service.process.pid}/limits").read_text().splitlines()
                if line.startswith("Max open files")
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert limit.split()[3:5] == [str(most), str(most)]


class OpenBackend(FakeBackend):
    """Has no model to load."""

    startup_grace_seconds = 1.0

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def ask_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first line of the answer; empty where the server closes the connection."""
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b'ok"}')
    return head.partition(b"\r\n")[0]


def test_a_full_server_closes_the_connection_that_has_been_idle_longest_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "MIN_IDLE_SECONDS", 0.0)

    async def story() -> None:
        backend: Any = OpenBackend(port=0, max_connections=2)
        server = server_module.build(backend.settings, backend)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        clients = []
        for _ in range(3):
            clients.append(await asyncio.open_connection("127.0.0.1", port))
            assert await ask_health(*clients[-1]) == b"HTTP/1.1 200 OK"
        assert await clients[0][0].read() == b""
        assert await ask_health(*clients[1]) == b"HTTP/1.1 200 OK"
        assert len(server.server_state.connections) == 2
        for _, writer in clients:
            writer.close()
        await server.shutdown()

    asyncio.run(story())
