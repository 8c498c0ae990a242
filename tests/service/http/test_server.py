"""A server process raises its limit on open files, and makes room for a connection when it is full."""

import asyncio
import resource
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.harness.client import ask_once, get
from benchmarks.harness.process import ServiceProcess
from packbert.service.address import ListenError
from packbert.service.http import server as server_module
from packbert.service.http.limits import RESERVE
from packbert.service.http.server import MIN_IDLE_SECONDS, Server
from tests.service.fakes import FakeTime, settle
from tests.service.http.test_fast_path import FakeBackend
from tests.service.modeless import play_server


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


PLACES = 5


class OpenBackend(FakeBackend):
    """Has no model to load."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def ask_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first line of the answer; empty where the server closes the connection."""
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b'ok"}')
    return head.partition(b"\r\n")[0]


HALF = {
    "nothing": b"",
    "head": b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ",
    "body": b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",
}


@pytest.mark.parametrize("half", HALF)
def test_half_sent_requests_keep_no_probe_waiting(bert_artifact: Path, half: str) -> None:
    """Of three times as many as there are places, the oldest go; no time passes until a probe is answered."""

    async def story(server: Server, port: int, time: FakeTime) -> None:
        clients = []
        for number in range(3 * (PLACES + RESERVE)):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(HALF[half])
            if number % 8 == 0:
                await settle()
            if half == "body":
                time.now += MIN_IDLE_SECONDS  # a body that has just begun does not give way
        began = time.now
        assert (await ask_once(port, get("/health"))).status == 200
        assert time.now == began
        assert len(server.limits.connections) <= PLACES + RESERVE
        for client in clients:
            client.close()

    play_server(bert_artifact, story, max_connections=PLACES)


@pytest.mark.parametrize(("largest", "held"), [(2**23, 2**26), (2**25, 2**28), (1000, 2**23)])
def test_a_server_holds_8_bodies_of_the_largest_size_and_answers_of_at_least_8_mib(
    bert_artifact: Path, largest: int, held: int
) -> None:
    async def story(server: Server, _: int, __: FakeTime) -> None:
        assert server.limits.buffered.most == held

    play_server(bert_artifact, story, max_body_bytes=largest)


def test_a_server_whose_places_are_all_in_use_answers_probes_and_says_to_others_that_it_is_full(
    bert_artifact: Path,
) -> None:
    async def story(_: Server, port: int, __: FakeTime) -> None:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(PLACES)]
        for client in clients:
            client.sendall(HALF["body"])
        await settle()
        for path in ("/health", "/ready"):
            outcome = await ask_once(port, get(path))
            assert outcome.status == 200
            assert b"\r\nconnection: close" in outcome.head
        outcome = await ask_once(port, get("/info"))
        assert (outcome.status, orjson.loads(outcome.body)["code"]) == (503, "connections_full")
        assert b"\r\nretry-after: 1\r\n" in outcome.head
        clients.pop().close()
        await settle()
        outcome = await ask_once(port, get("/info"))
        assert (outcome.status, b"\r\nconnection: close" in outcome.head) == (200, False)
        for client in clients:
            client.close()

    play_server(bert_artifact, story, max_connections=PLACES)


def test_a_full_server_closes_the_connection_that_has_been_idle_longest_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "MIN_IDLE_SECONDS", 0.0)

    async def story() -> None:
        backend: Any = OpenBackend(port=0, max_connections=2)
        server = server_module.build(backend.settings, backend, grace_seconds=1.0)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serving = asyncio.create_task(server.serve([listener]))
        clients = []
        for _ in range(3):
            clients.append(await asyncio.open_connection("127.0.0.1", port))
            assert await ask_health(*clients[-1]) == b"HTTP/1.1 200 OK"
        assert await clients[0][0].read() == b""
        assert await ask_health(*clients[1]) == b"HTTP/1.1 200 OK"
        assert len(server.limits.connections) == 2
        for _, writer in clients:
            writer.close()
        server.ended.set()
        await serving

    asyncio.run(story())


def test_a_port_that_another_process_takes_meanwhile_ends_the_start() -> None:
    backend: Any = OpenBackend(port=0)
    server = server_module.build(backend.settings, backend)
    with socket.socket() as other, socket.socket() as own:
        for each in (other, own):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        own.bind(other.getsockname())
        other.listen()
        with pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:0 \(BERT_HOST, BERT_PORT\)"):
            asyncio.run(server.serve([own]))
