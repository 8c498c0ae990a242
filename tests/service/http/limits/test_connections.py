"""Connections over the number wait in the backlog, at no cost, until another one ends."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from packbert.service.http.limits import LOOK_AGAIN_SECONDS as RETRY_SECONDS
from packbert.service.http.limits import Acceptor
from tests.service.fakes import FakeTime, play


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
        self.server.connections.remove(self)
        self.server.acceptor.on_connection_lost()
        self.transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.acceptor.on_connection_lost()


class EchoServer:
    def __init__(self, most: int) -> None:
        self.connections: list[Echo] = []
        self.asked_for_room = 0
        self.reserved: list[bool] = []  # of each connection
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.acceptor = Acceptor([self.listener], self.make, most=most, reserve=0, give_place=self.give_place)

    def make(self, in_reserve: bool) -> Echo:
        self.reserved.append(in_reserve)
        return Echo(self)

    def give_place(self, _: bool) -> bool:
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
        await server.acceptor.wait_closed()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_connection_over_the_number_is_served_after_another_one_has_ended() -> None:
    async def story(server: EchoServer) -> None:
        clients = [await server.connect() for _ in range(3)]
        for reader, _ in clients[:2]:
            assert await reader.readexactly(1) == b"x"
        assert len(server.connections) == server.acceptor.open == 2
        assert server.asked_for_room >= 1
        clients[0][1].close()
        assert await clients[2][0].readexactly(1) == b"x"
        assert len(server.connections) == server.acceptor.open == 2
        for _, writer in clients:
            writer.close()

    serve(2, story)


def test_connections_over_the_number_are_accepted_as_far_as_the_reserve_goes() -> None:
    async def story(server: EchoServer) -> None:
        server.acceptor.reserve = 2
        clients = [await server.connect() for _ in range(6)]
        for reader, _ in clients[:5]:
            assert await reader.readexactly(1) == b"x"
        assert server.reserved == [False, False, False, True, True]
        assert server.asked_for_room >= 3
        clients[0][1].close()
        assert await clients[5][0].readexactly(1) == b"x"
        assert server.reserved[5:] == [True]
        for _, writer in clients:
            writer.close()

    serve(3, story)


def test_a_connection_that_finds_room_is_not_in_the_reserve() -> None:
    async def story(server: EchoServer) -> None:
        def give_place(_: bool) -> bool:
            """As the service does: the connection does not count any more, although its end is still to come."""
            server.connections[0].give_way()
            return True

        server.acceptor.reserve, server.acceptor._give_place = 1, give_place
        for number in range(5):
            reader, writer = await server.connect()
            assert await reader.readexactly(1) == b"x"
            assert server.reserved == [False] * (number + 1)
            writer.close()

    serve(1, story)


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


def test_without_a_free_descriptor_it_tries_again_once_a_second() -> None:
    async def story(time: FakeTime) -> None:
        listener: Any = FullListener()
        acceptor = Acceptor([listener], lambda _: asyncio.Protocol(), most=10, reserve=0, give_place=lambda _: False)
        await asyncio.sleep(10.5 * RETRY_SECONDS)
        assert 10 <= listener.attempts <= 12
        assert acceptor.open == 0
        assert time.now == 10.5 * RETRY_SECONDS
        acceptor.close()

    play(story)
