"""A server on real sockets: its limits, clients that break the protocol, the access log, and its end."""

import asyncio
import gc
import inspect
import logging
import re
import resource
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.harness.client import Connection, Outcome, ask_once, get, post, values_of
from benchmarks.harness.process import ServiceProcess
from packbert.service.address import ListenError
from packbert.service.artifact import open_artifact
from packbert.service.http.connection import SLICE_BYTES
from packbert.service.http.limits import MIN_IDLE_SECONDS
from packbert.service.http.server import (
    AFTER_DRAIN_SECONDS,
    LAST_CONNECTIONS_SECONDS,
    Server,
)
from packbert.service.settings import Settings
from tests.contract.edge import PROTOCOL
from tests.service.fakes import FakeTime, settle
from tests.service.modeless import LOOPS, build_server, modeless, play_server, run_server


def test_the_soft_limit_on_open_files_is_raised_to_the_hard_limit(bert_artifact: Path) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    service = ServiceProcess({"BERT_MODEL": str(bert_artifact)})
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
        for number in range(3 * (PLACES + server.limits.reserve)):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(HALF[half])
            if number % 8 == 0:
                await settle()
            if half == "body":
                time.now += MIN_IDLE_SECONDS  # a body that has just begun does not give way
        began = time.now
        assert (await ask_once(port, get("/health"))).status == 200
        assert time.now == began
        assert len(server.limits.connections) <= PLACES + server.limits.reserve
        for client in clients:
            client.close()

    play_server(bert_artifact, story, most=PLACES)


@pytest.mark.parametrize(("largest", "held"), [(2**23, 2**26), (2**25, 2**28), (1000, 2**23)])
def test_a_server_holds_8_bodies_and_answers_of_at_least_8_mib(bert_artifact: Path, largest: int, held: int) -> None:
    async def story(server: Server, _: int, __: FakeTime) -> None:
        assert server.limits.buffered.most == held

    play_server(bert_artifact, story, max_body_bytes=largest)


def test_a_server_without_places_answers_probes_and_says_it_is_full(bert_artifact: Path) -> None:
    async def story(_: Server, port: int, __: FakeTime) -> None:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(PLACES)]
        for client in clients:
            client.sendall(HALF["body"])
        await settle()
        for path in ("/health", "/ready?x=1"):
            outcome = await ask_once(port, get(path))
            assert outcome.status == 200
            assert b"\r\nconnection: close" in outcome.head
        outcome = await ask_once(port, get("/v2"))
        assert (outcome.status, orjson.loads(outcome.body)["code"]) == (503, "connections_full")
        assert b"\r\nretry-after: 1\r\n" in outcome.head
        assert f"takes {PLACES} connections: ".encode() in outcome.body
        clients.pop().close()
        await settle()
        outcome = await ask_once(port, get("/v2"))
        assert (outcome.status, b"\r\nconnection: close" in outcome.head) == (200, False)
        for client in clients:
            client.close()

    play_server(bert_artifact, story, most=PLACES)


def test_a_full_server_closes_the_longest_idle_connection_for_a_new_one(bert_artifact: Path) -> None:
    async def story(server: Server, port: int, time: FakeTime) -> None:
        clients, oldest = [Connection(port) for _ in range(3)], set[Any]()
        for client in clients:
            outcome = await client.ask(get("/health"))
            assert (outcome.status, is_last(outcome)) == (200, False)  # none of them is in the reserve
            oldest = oldest or {*server.limits.connections}
            time.now += MIN_IDLE_SECONDS
        assert len(server.limits.connections) == 2
        assert not oldest & server.limits.connections
        assert (await clients[1].ask(get("/health"))).status == 200
        reserved = socket.create_connection(("127.0.0.1", port))  # nothing has been idle for long enough
        await settle()
        time.now += MIN_IDLE_SECONDS / 2
        assert (await ask_once(port, get("/"))).status == 200, "one gave way, so this one is not in the reserve"
        reserved.close()
        for client in clients:
            client.close()

    play_server(bert_artifact, story, most=2)


def test_a_port_that_another_process_takes_meanwhile_ends_the_start(bert_artifact: Path) -> None:
    settings = Settings(model=str(bert_artifact), port=0)
    server = build_server(settings, modeless(open_artifact(bert_artifact), settings))
    with socket.socket() as other, socket.socket() as own:
        for each in (other, own):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        own.bind(other.getsockname())
        other.listen()
        with pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:0 \(BERT_HOST, BERT_PORT\)"):
            asyncio.run(server.serve([own]))


ON_EACH_LOOP = pytest.mark.parametrize("loop", LOOPS)
KEY, HOST = "authorization: bearer secret-of-the-tests-1\r\n", "host: x\r\n"
ENDED = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ANSWERS = {  # by status: method, path, headers and body
    200: ("GET", "/health", "", b""),
    400: ("POST", "/embed", "", b"{"),
    401: ("POST", "/embed", "authorization: bearer wrong\r\n", b"{}"),
    404: ("POST", "/nowhere", "", b"{}"),
    405: ("GET", "/embed", "", b""),
    413: ("POST", "/embed", "", b" " * 4 * SLICE_BYTES),
    415: ("POST", "/embed", "content-encoding: br\r\n", b"{}"),
    422: ("POST", "/embed", "", b'{"inputs": 1, "x": null}'),
    500: ("POST", "/embed", "", b'{"inputs": "a"}'),  # nothing runs behind the queue
    501: ("POST", "/predict", "", b'{"inputs": "a"}'),
}
MALFORMED = {  # requests of the contract, by label, and their status
    **dict.fromkeys(("no host", "two hosts", "CONNECT", "no request line", "a body in tiny chunks"), 400),
    "an absolute target without a path": 400,
    "a head above the limit": 431,
    "the coding gzip alone": 501,
    **dict.fromkeys(("HTTP/2.0", "HTTP/2 without TLS"), 505),
}
RAW = {one.label: one.raw for one in PROTOCOL if one.raw is not None and one.label in MALFORMED}


def request(status: int, slices: int = 0, body: bytes = b"") -> bytes:
    """The request with that answer; in whole slices of the parser, of which there are so many at least, if any."""
    method, path, headers, own = ANSWERS[status]
    body = body or own
    more = headers + (KEY if status != 401 else "")
    head = f"{method} {path} HTTP/1.1\r\n{HOST}{more}content-length: "
    if slices:
        most = max(slices, 1 + len(body) // SLICE_BYTES) * SLICE_BYTES
        body = body.ljust(most - len(head) - len("12345\r\n\r\n"))
        return f"{head}{len(body):05}\r\n\r\n".encode() + body
    return f"{head}{len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


async def settled(server: Server) -> None:
    """No connection is left in any list: all clients have gone."""
    async with asyncio.timeout(60):
        while server.limits.connections or server.limits.open:
            await settle()
    assert [*server.limits.heads, *server.limits.bodies, *server.limits.tasks] == []


@pytest.mark.parametrize("slices", [0, 1, 3])
@ON_EACH_LOOP
def test_a_malformed_request_behind_any_answer_ends_its_connection(bert_artifact: Path, loop: str, slices: int) -> None:
    async def story(server: Server, port: int) -> None:
        found = {}
        for status in ANSWERS:
            for name, head in RAW.items():
                async with connected(port) as (reader, writer):
                    writer.write(request(status, slices) + head)
                    found[status, name] = [int(one) for one in ENDED.findall(await reader.read())]
        assert found == {(status, name): [status, MALFORMED[name]] for status, name in found}
        await settled(server)

    run_server(bert_artifact, story, loop, api_key="secret-of-the-tests-1", max_body_bytes=3 * SLICE_BYTES)


def reset(port: int, sent: bytes) -> None:
    """A client that has gone before its connection can be accepted."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["nothing", "request"])
@ON_EACH_LOOP
def test_connections_that_are_reset_before_they_are_accepted_take_no_place(
    bert_artifact: Path, loop: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(server: Server, port: int) -> None:
        for _ in range(3):
            for _ in range(PLACES + server.limits.reserve):
                reset(port, sent)
            async with asyncio.timeout(60):
                assert (await ask_once(port, get("/ready"))).status == 200
        await settled(server)

    run_server(bert_artifact, story, loop, most=PLACES)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


HALF_SENT = [HALF["head"], HALF["body"], request(500)[:-1]]


async def talk(port: int, sent: bytes) -> None:
    """On a plain socket: asyncio's own connections leave cycles. Leaves in the midst of a request that is half sent."""
    loop, client = asyncio.get_running_loop(), socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    await loop.sock_sendall(client, sent.replace(b"content-length", b"connection: close\r\ncontent-length", 1))
    while sent not in HALF_SENT and await loop.sock_recv(client, 2**16):
        pass
    client.close()


@ON_EACH_LOOP
def test_no_response_and_no_connection_leaves_a_cycle(bert_artifact: Path, loop: str) -> None:
    """A cycle waits for the garbage collector, which holds the loop for as long as it frees what has gathered."""
    left = list[object]()

    async def story(server: Server, port: int) -> None:
        invalid = [request(422, body=body) for body in (b'{"inputs": 1}', b'{"inputs": "a", "x": 1}', b"[]")]
        streams = [*map(request, ANSWERS), *invalid, *RAW.values(), *HALF_SENT]
        for _ in range(2):  # the first time also imports and opens what later requests share
            gc.collect()
            gc.disable()
            for sent in streams:
                await talk(port, sent)
            await settled(server)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left[:] = gc.garbage
            gc.garbage.clear()
            gc.set_debug(0)
            gc.enable()

    try:
        run_server(bert_artifact, story, loop, api_key="secret-of-the-tests-1", max_body_bytes=SLICE_BYTES)
    finally:
        gc.set_debug(0)
        gc.enable()
    of_asyncio = ("asyncio", "socket", "builtins")  # its transports are cycles by themselves, until Python 3.12
    ours = [one for one in left if type(one).__module__.partition(".")[0] not in of_asyncio or inspect.isframe(one)]
    assert (left if loop == "uvloop" else ours) == []


LINE = b" HTTP/1.1\r\nhost: x\r\n"
PREFLIGHT = b"OPTIONS /embed" + LINE + b"origin: https://a.example\r\naccess-control-request-method: POST\r\n\r\n"
EMPTY_BODY = b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
OF_LINES: list[tuple[bytes, tuple[str, str, int, str | None]]] = [  # and method, route, status, code of the line
    (b"GET /health" + LINE + b"\r\n", ("GET", "/health", 200, None)),
    (b"GET /no%20where%0a" + LINE + b"\r\n", ("GET", "/no where\n", 404, None)),
    (b"PUT /embed" + LINE + b"\r\n", ("PUT", "/embed", 405, None)),
    (b"POST /embed" + LINE + EMPTY_BODY, ("POST", "/embed", 422, "invalid")),
    (PREFLIGHT, ("OPTIONS", "/embed", 200, None)),
    (b"GET /" + b"x" * 20_000 + LINE + b"\r\n", ("GET", "/" + "x" * 20_000, 431, "headers_too_large")),
    (b"POST /embed?key=1" + LINE + b"transfer-encoding: chunked\r\n\r\nZZ", ("POST", "/embed", 400, "malformed")),
    (b"GET /x HTTP/2.0\r\n\r\n", ("GET", "/x", 505, "malformed")),
    (b"nonsense\r\n\r\n", ("", "", 400, "malformed")),
    (b"POST /embed" + LINE + b"content-length: 5\r\n\r\n{", ("POST", "/embed", 408, "slow")),
]


def test_every_response_has_a_line_and_counts_once_and_a_client_that_leaves_has_499(
    bert_artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the endpoint, which is reading the body, sees that the connection closes."""
    outcomes, counted = list[Outcome](), dict[str, float]()

    async def story(server: Server, port: int, _: FakeTime) -> None:
        for sent, _line in OF_LINES:
            outcomes.append(await ask_once(port, sent))
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(OF_LINES[-1][0])
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert server.models is not None
        counted.update(values_of((await server.models.render_metrics(""))[0].decode()))

    with caplog.at_level(logging.INFO, "service.access"):
        play_server(bert_artifact, story, access_log=True, cors_origins="*")
    lines = [record.__dict__["fields"] for record in caplog.records if record.name == "service.access"]
    found = [(one["method"], one["route"], one["status"], one.get("code")) for one in lines]
    assert found == [*(line for _, line in OF_LINES), ("POST", "/embed", 499, "client_closed")]
    requests = {name: value for name, value in counted.items() if name.startswith("bert_requests_total") and value}
    assert requests == {
        **{f'bert_requests_total{{status="{status}",task="unknown"}}': 1 for status in (404, 405, 408, 431, 505)},
        'bert_requests_total{status="400",task="unknown"}': 2,
        **{f'bert_requests_total{{status="{status}",task="embed"}}': 1 for status in (422, 499)},
    }
    for line, outcome in zip(lines, outcomes, strict=False):
        assert line["status"] == outcome.status
        assert line["client"].startswith("127.0.0.1:")
        assert line["bytes"] == len(outcome.body)
        assert line["id"] == outcome.head.partition(b"\r\nx-request-id: ")[2].partition(b"\r\n")[0].decode()
    assert lines[-1]["bytes"] == 0


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
