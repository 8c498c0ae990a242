"""The bytes that all requests hold together are bounded, and memory is given back when none are held."""

import asyncio

import pytest
from starlette.types import Message

from packbert.service.errors import BuffersFull, TooLarge
from packbert.service.http.endpoint import TaskRequest
from packbert.service.http.exchange import CONNECTION_KEY, ClientConnection
from packbert.service.http.limits import TRIM_SECONDS, BufferedBytes
from tests.service.fakes import FakeTime, play


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


def test_bytes_over_the_bound_are_refused_and_not_counted() -> None:
    async def story(_: FakeTime) -> None:
        buffered = BufferedBytes(100, Trims())
        buffered.hold(60)
        with pytest.raises(BuffersFull, match=r"holds 60 bytes .* at most 100 \(8 x BERT_MAX_BODY_BYTES\)") as raised:
            buffered.hold(41)
        assert (raised.value.status, raised.value.headers) == (429, {"retry-after": "1"})
        assert buffered.bodies == 60
        buffered.hold(40)
        buffered.release(100)
        buffered.check_size(100)

    play(story)


def test_over_the_bound_the_answers_that_have_waited_longest_are_dropped() -> None:
    async def story(_: FakeTime) -> None:
        buffered = BufferedBytes(100, Trims())
        senders = [FakeSender() for _ in range(4)]
        for sender, size in zip(senders, (40, 40, 20, 60), strict=True):
            buffered.wait_for_reader(sender, size)
        assert [sender.aborted for sender in senders] == [True, False, False, False] or senders[1].aborted
        assert sum(buffered.unsent.values()) <= 100

    play(story)


def test_an_answer_keeps_its_place_while_it_is_read_and_leaves_it_at_the_end() -> None:
    async def story(_: FakeTime) -> None:
        buffered = BufferedBytes(100, Trims())
        first, second, third = (FakeSender() for _ in range(3))
        buffered.wait_for_reader(first, 50)
        buffered.wait_for_reader(second, 50)
        buffered.wait_for_reader(first, 49)
        buffered.wait_for_reader(third, 50)
        assert (first.aborted, second.aborted, third.aborted) == (True, False, False)
        buffered.wait_for_reader(second, 0)
        assert list(buffered.unsent) == [third]

    play(story)


def test_a_single_answer_over_the_bound_is_sent() -> None:
    async def story(_: FakeTime) -> None:
        buffered, sender = BufferedBytes(100, Trims()), FakeSender()
        buffered.wait_for_reader(sender, 1000)
        assert not sender.aborted

    play(story)


def test_memory_is_trimmed_once_after_the_last_byte() -> None:
    async def story(time: FakeTime) -> None:
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

    play(story)


def test_a_body_over_the_limit_of_its_route_is_not_counted() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(2**15), "more_body": True}

    async def send(_: Message) -> None:
        raise AssertionError("nothing is answered here")

    async def story() -> None:
        connection = ClientConnection()
        scope = {"path": "/", "headers": [], "state": {CONNECTION_KEY: connection}}
        with pytest.raises(TooLarge):
            await TaskRequest(scope, receive, send).read_body(4096)
        assert connection.buffered.bodies == 0

    asyncio.run(story())
