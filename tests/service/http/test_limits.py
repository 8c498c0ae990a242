"""Connections over the number wait, and the bytes that all requests hold together are bounded."""

import asyncio
import errno
import socket
from typing import Any

import pytest

from packbert.service.errors import BuffersFull
from packbert.service.http.limits import LOOK_AGAIN_SECONDS as RETRY_SECONDS
from packbert.service.http.limits import TRIM_SECONDS, Acceptor, BufferedBytes, ConnectionLimits
from tests.service.fakes import FakeTime, on_loop, played, settle, until


@on_loop
async def test_connections_over_the_number_are_accepted_as_far_as_the_reserve_goes() -> None:
    accepted: list[bool] = []  # in the reserve

    def make(in_reserve: bool) -> asyncio.Protocol:
        accepted.append(in_reserve)
        return asyncio.Protocol()

    listener, limits = socket.create_server(("127.0.0.1", 0)), ConnectionLimits(most=3, reserve=2)
    acceptor = Acceptor([listener], limits, make)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(6)]
    await until(lambda: len(accepted) >= 5)
    await settle()
    assert accepted == [False, False, False, True, True]
    assert limits.open == 5
    assert not asyncio.get_running_loop().remove_reader(listener.fileno()), "no turn is spent on what waits"
    limits.open -= 1
    limits.on_connection_lost()
    await settle()
    assert accepted[5:] == [True]
    acceptor.close()
    for client in clients:
        client.close()
    await settle()


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


@on_loop
async def test_bytes_over_the_bound_are_refused_and_not_counted() -> None:
    buffered = BufferedBytes(100, lambda: None)
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
    buffered = BufferedBytes(100, lambda: None)
    first, second, third = (FakeSender() for _ in range(3))
    buffered.wait_for_reader(first, 50)
    buffered.wait_for_reader(second, 50)
    buffered.wait_for_reader(first, 49)
    buffered.wait_for_reader(third, 50)
    assert (first.aborted, second.aborted, third.aborted) == (True, False, False)
    buffered.wait_for_reader(second, 0)
    assert list(buffered.unsent) == [third]
    buffered.wait_for_reader(third, 1000)
    assert not third.aborted, "the only one is sent whatever its size"


@played
async def test_memory_is_trimmed_once_after_the_last_byte(time: FakeTime) -> None:
    trims, sender = list[float](), FakeSender()
    buffered = BufferedBytes(100, lambda: trims.append(time.now))
    for _ in range(5):
        buffered.hold(10)
        buffered.wait_for_reader(sender, 10)
        buffered.release(10)
        await asyncio.sleep(10 * TRIM_SECONDS)
        buffered.wait_for_reader(sender, 0)
        await asyncio.sleep(TRIM_SECONDS / 2)
    assert trims == []
    await asyncio.sleep(10 * TRIM_SECONDS)
    assert trims == [time.now - 9.5 * TRIM_SECONDS]
