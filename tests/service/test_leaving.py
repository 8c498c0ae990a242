"""From SIGTERM to the end of the server, on a fake clock with real sockets: it lingers, drains, closes the port."""

import asyncio
import socket
from pathlib import Path

from benchmarks.harness.client import Connection, Outcome, ask_once, get, post
from packbert.service.http.server import AFTER_DRAIN_SECONDS, LAST_CONNECTIONS_SECONDS, Server
from tests.service.fakes import FakeTime
from tests.service.modeless import play_server

LINGER_SECONDS = 30.0
ADMITTED = 422  # of an invalid body: it is read only after the request has been admitted
INVALID = post("/embed", {})


def is_last(outcome: Outcome) -> bool:
    """Whether the server closes the connection after this response."""
    return b"\r\nconnection: close" in outcome.head


def test_new_requests_are_served_while_it_lingers_and_refused_after_that(bert_artifact: Path) -> None:
    async def story(server: Server, port: int, time: FakeTime) -> None:
        kept, idle = Connection(port), Connection(port)
        for connection in (kept, idle):
            assert not is_last(await connection.ask(INVALID))
        server.leave()
        began = time.now
        assert (await ask_once(port, get("/ready"))).status == 503
        outcome = await kept.ask(INVALID)
        assert (outcome.status, is_last(outcome)) == (ADMITTED, True)
        await asyncio.sleep(LINGER_SECONDS - 1)
        assert (await ask_once(port, INVALID)).status == ADMITTED
        await asyncio.sleep(began + LINGER_SECONDS - time.now + 0.1)
        for outcome in (await idle.ask(INVALID), await ask_once(port, INVALID)):
            assert (outcome.status, is_last(outcome)) == (503, True)
            assert b"\r\nretry-after: 1\r\n" in outcome.head

    play_server(bert_artifact, story, linger_seconds=LINGER_SECONDS)


def test_the_last_connection_before_the_port_closes_is_answered(bert_artifact: Path) -> None:
    async def story(server: Server, port: int, _: FakeTime) -> None:
        server.leave()
        await asyncio.sleep(AFTER_DRAIN_SECONDS - 0.01)
        with socket.create_connection(("127.0.0.1", port)) as late:  # established by the system, not yet accepted
            await asyncio.sleep(LAST_CONNECTIONS_SECONDS)
            late.sendall(INVALID)
            await asyncio.sleep(0.2)
            assert late.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert server.ended.is_set()

    play_server(bert_artifact, story, linger_seconds=0)


def test_a_request_that_the_protocol_rejects_in_its_body_is_counted_once(bert_artifact: Path) -> None:
    """The endpoint, which is reading the body, sees the connection close."""
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\n"

    async def story(server: Server, port: int, _: FakeTime) -> None:
        malformed = head + b"transfer-encoding: chunked\r\n\r\nnot a number\r\n"
        unfinished = head + b"content-length: 10\r\n\r\n123"
        assert [(await ask_once(port, each)).status for each in (malformed, unfinished)] == [400, 408]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(unfinished)
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert server.models is not None
        text = (await server.models.render_metrics(""))[0].decode()
        counted = [line for line in text.splitlines() if line.startswith("bert_requests_total") and line[-3:] != "0.0"]
        assert sorted(counted) == [
            'bert_requests_total{status="400",task="unknown"} 1.0',
            'bert_requests_total{status="408",task="unknown"} 1.0',
            'bert_requests_total{status="499",task="embed"} 1.0',
        ]

    play_server(bert_artifact, story, linger_seconds=0)
