"""Connections over the number wait, and the bytes that all requests hold together are bounded."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from packbert.service.errors import BuffersFull
from packbert.service.http.limits import LOOK_AGAIN_SECONDS as RETRY_SECONDS
from packbert.service.http.limits import TRIM_SECONDS, Acceptor, BufferedBytes, ConnectionLimits
from tests.service.fakes import FakeTime, on_loop, played


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def __init__(self, server: "EchoServer") -> None:
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def give_way(self) -> None:
        self.leave()
        self.transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        if self in self.server.connections:
            self.leave()

    def leave(self) -> None:
        self.server.connections.remove(self)
        self.server.limits.open -= 1
        self.server.limits.on_connection_lost()


class EchoServer:
    def __init__(self, most: int) -> None:
        self.connections: list[Echo] = []
        self.asked_for_room = 0
        self.reserved: list[bool] = []  # of each connection
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.limits = ConnectionLimits(most=most, reserve=0)
        self.acceptor = Acceptor([self.listener], self.limits, self.make)
        self.let_give_place(self.keep)

    def make(self, in_reserve: bool) -> Echo:
        self.reserved.append(in_reserve)
        return Echo(self)

    def let_give_place(self, give_place: Callable[[], bool]) -> None:
        self.acceptor._give_place = lambda *, reserve_is_full: give_place()  # type: ignore[method-assign]

    def keep(self) -> bool:
        self.asked_for_room += 1
        return False

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"x")
        return reader, writer


def serve(most: int, story: Callable[[EchoServer], Awaitable[None]]) -> None:
    async def run() -> None:
        server = EchoServer(most)
        await story(server)
        server.acceptor.close()
        for connection in [*server.connections]:
            connection.transport.abort()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_connections_over_the_number_are_accepted_as_far_as_the_reserve_goes() -> None:
    async def story(server: EchoServer) -> None:
        server.limits.reserve = 2
        clients = [await server.connect() for _ in range(6)]
        for reader, _ in clients[:5]:
            assert await reader.readexactly(1) == b"x"
        assert server.reserved == [False, False, False, True, True]
        assert len(server.connections) == server.limits.open == 5
        assert server.asked_for_room >= 3
        clients[0][1].close()
        assert await clients[5][0].readexactly(1) == b"x"
        assert server.reserved[5:] == [True]
        for _, writer in clients:
            writer.close()

    serve(3, story)


class FullListener:
    """A connection waits, and no descriptor is free for it."""

    attempts = 0

    def listen(self, _: int) -> None: ...

    def __init__(self) -> None:
        self.pair = socket.socketpair()
        self.pair[1].send(b"x")

    def fileno(self) -> int:
        return self.pair[0].fileno()

    def setblocking(self, _: bool) -> None: ...

    def accept(self) -> Any:
        self.attempts += 1
        raise OSError(errno.EMFILE, "too many open files")

    def close(self) -> None:
        for one in self.pair:
            one.close()


@played
async def test_without_a_free_descriptor_it_tries_again_once_a_second(time: FakeTime) -> None:
    listener: Any = FullListener()
    limits = ConnectionLimits(most=10)
    acceptor = Acceptor([listener], limits, lambda _: asyncio.Protocol())
    await asyncio.sleep(10.5 * RETRY_SECONDS)
    assert 10 <= listener.attempts <= 12
    assert limits.open == 0
    assert time.now == 10.5 * RETRY_SECONDS
    acceptor.close()


class FakeSender(asyncio.WriteTransport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


class Trims:
    """A clock's readings at each trim."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self) -> None:
        self.at.append(asyncio.get_running_loop().time())


@on_loop
async def test_bytes_over_the_bound_are_refused_and_not_counted() -> None:
    buffered = BufferedBytes(100, Trims())
    buffered.hold(60)
    with pytest.raises(BuffersFull, match=r"holds 60 bytes .* at most 100 \(8 x BERT_MAX_BODY_BYTES\)") as raised:
        buffered.hold(41)
    assert (raised.value.status, raised.value.headers) == (429, {"retry-after": "1"})
    assert buffered.bodies == 60
    buffered.hold(40)
    buffered.release(100)
    buffered.check_size(100)


@on_loop
async def test_an_answer_keeps_its_place_until_it_is_read() -> None:
    buffered = BufferedBytes(100, Trims())
    first, second, third = (FakeSender() for _ in range(3))
    buffered.wait_for_reader(first, 50)
    buffered.wait_for_reader(second, 50)
    buffered.wait_for_reader(first, 49)
    buffered.wait_for_reader(third, 50)
    assert (first.aborted, second.aborted, third.aborted) == (True, False, False)
    buffered.wait_for_reader(second, 0)
    assert list(buffered.unsent) == [third]


@on_loop
async def test_a_single_answer_over_the_bound_is_sent() -> None:
    buffered, sender = BufferedBytes(100, Trims()), FakeSender()
    buffered.wait_for_reader(sender, 1000)
    assert not sender.aborted


@played
async def test_memory_is_trimmed_once_after_the_last_byte(time: FakeTime) -> None:
    trims, sender = Trims(), FakeSender()
    buffered = BufferedBytes(100, trims)
    for _ in range(5):
        buffered.hold(10)
        buffered.wait_for_reader(sender, 10)
        buffered.release(10)
        await asyncio.sleep(10 * TRIM_SECONDS)
        buffered.wait_for_reader(sender, 0)
        await asyncio.sleep(TRIM_SECONDS / 2)
    assert trims.at == []
    await asyncio.sleep(10 * TRIM_SECONDS)
    assert trims.at == [time.now - 9.5 * TRIM_SECONDS]
