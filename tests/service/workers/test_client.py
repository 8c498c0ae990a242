"""A line at the other end of a unix socket: the same answers, the same errors, the same leaving; only the engine behind it is fake."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from service.errors import DeadlineExceeded, InferenceFailed, Overloaded, ServiceError, TooLarge, Unavailable
from service.scheduling.batcher import Batcher
from service.scheduling.queue import RequestQueue
from service.scheduling.results import InferenceResult
from service.workers import messages as wire
from service.workers.client import EngineClient
from service.workers.engine_worker import EngineWorker
from service.workers.heartbeat import pipe
from tests.service.fakes import FakeRunner, adds_up, make_queue, sequence

PATIENCE_SECONDS = 10
E = TypeVar("E", bound=ServiceError)


class FakeEngine:
    """An engine whose model is a FakeRuntime; its line is the real one."""

    def __init__(self, runner: FakeRunner, waiting: RequestQueue) -> None:
        manifest = SimpleNamespace(sizes={"vocabulary": 1000, "segments": 2}, max_tokens=1000)
        self.artifact: Any = SimpleNamespace(digest="mine", manifest=manifest)
        self.batcher = Batcher(run=runner.run, queue=waiting)
        self.metrics: Any = SimpleNamespace(queue_text=lambda: b"counts")
        self.on_fatal: Callable[[], None] = lambda: None

    def readiness(self) -> str:
        return "quite well"

    def check_open(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return {"model": "fake"}

    async def open(self) -> None:
        self._serving = asyncio.create_task(self.batcher.serve())

    async def close(self) -> None:
        self.batcher.fail_all("the end")
        await self._serving


class Both:
    """An engine's process and API processes, all in one loop, with a real socket between them."""

    def __init__(self, folder: Path, runner: FakeRunner, waiting: RequestQueue) -> None:
        self.folder, self.runner = folder, runner
        self.engine = FakeEngine(runner, waiting)
        self.listener = socket.socket(socket.AF_UNIX)
        self.pulse = pipe()
        self.remotes: list[tuple[EngineClient, asyncio.Task[None]]] = []
        self.others: list[str] = []

    @property
    def line(self) -> Batcher:
        return self.engine.batcher

    async def start_engine(self) -> None:
        self.server = EngineWorker(self.engine, self.pulse[1])  # type: ignore[arg-type]
        self.running = asyncio.create_task(self.server.run(self.listener.dup()))

    async def stop_engine(self) -> int:
        self.server._finish(0)
        return await self.running

    async def connect(self, artifact: str = "mine") -> EngineClient:
        """An API process's end, which may or may not have found the engine yet."""
        remote = EngineClient(
            self.folder / "s",
            artifact,
            patience_seconds=PATIENCE_SECONDS,
            on_other_artifact=lambda: self.others.append(artifact),
        )
        self.remotes.append((remote, asyncio.create_task(remote.keep_connected())))
        return remote

    async def connected(self) -> EngineClient:
        remote = await self.connect()
        await until(lambda: remote._writer is not None)
        return remote

    async def leave(self) -> None:
        for remote, task in self.remotes:
            remote.close("closed")
            task.cancel()
        await asyncio.wait([task for _, task in self.remotes])
        self.runner.release()
        await until(lambda: self.line.unanswered == 0)
        assert adds_up(self.line)
        if not self.running.done():
            await self.stop_engine()
        self.listener.close()
        for end in self.pulse:
            os.close(end)


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits turn by turn; how long this thread, which is both ends, worked meanwhile: another process may take the core."""
    started, began = time.monotonic(), time.thread_time()
    while not holds():
        assert time.monotonic() < started + seconds
        await asyncio.sleep(0)
    return time.thread_time() - began


@asynccontextmanager
async def both(
    folder: Path, runner: FakeRunner | None = None, waiting: RequestQueue | None = None
) -> AsyncIterator[Both]:
    them = Both(folder, runner or FakeRunner(), make_queue() if waiting is None else waiting)
    them.listener.bind(str(folder / "s"))
    them.listener.listen(10)
    await them.start_engine()
    try:
        yield them
    finally:
        await them.leave()


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


def ask(
    remote: EngineClient, *numbers: int, length: int = 4, timeout: float = 100.0
) -> "asyncio.Task[InferenceResult]":
    return asyncio.create_task(remote.submit([sequence(n, length) for n in numbers], timeout_seconds=timeout))


def told(answer: InferenceResult) -> list[int]:
    return [int(row["cls"][0]) for row in answer.rows]


async def fault(task: "asyncio.Task[InferenceResult]", kind: type[E]) -> E:
    with pytest.raises(kind) as raised:
        await task
    assert type(raised.value) is kind
    return raised.value


def test_each_caller_of_each_process_gets_its_own_rows(tmp_path: Path) -> None:
    async def story() -> None:
        async with both(tmp_path) as them:
            one, other = await them.connected(), await them.connected()
            answers = await asyncio.gather(ask(one, 1, 2, 3), ask(other, 7), ask(one, 9, 8), ask(other, 1))
            assert [told(answer) for answer in answers] == [[1, 2, 3], [7], [9, 8], [1]]
            assert all(answer.queue_seconds >= 0 and answer.forward_seconds >= 0 for answer in answers)

    play(story)


def test_requests_of_one_turn_leave_in_one_message_and_share_a_batch(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner()
        async with both(tmp_path, runner, make_queue(token_budget=64)) as them:
            remote = await them.connected()
            await asyncio.gather(*(ask(remote, n) for n in range(10)))
            assert runner.batches == [list(range(10))]

    play(story)


def test_the_engines_errors_cross_with_their_input_and_their_patience(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        runner.poisoned = {5}
        async with both(tmp_path, runner, make_queue(max_tokens=40, tokens_per_second=1e6)) as them:
            remote = await them.connected()
            failing = ask(remote, 3, 4, 5)
            await until(lambda: bool(runner.batches))
            hasty = ask(remote, 6, timeout=0.01)
            assert "0 of 1 inputs had been dispatched" in (await fault(hasty, DeadlineExceeded)).message
            assert "at most" in (await fault(ask(remote, 1, length=50), TooLarge)).message
            full = ask(remote, *range(10, 18))
            await until(lambda: them.line.queue.tokens == 36)
            refused = await fault(ask(remote, 2, length=8), Overloaded)
            assert refused.retry_after is not None
            assert refused.retry_after >= 1
            runner.release()
            assert (await fault(failing, InferenceFailed)).index == 2
            assert told(await full) == list(range(10, 18))

    play(story)


def test_a_full_line_refuses_the_next_ones_before_they_are_read_and_soon_asks_again(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner, make_queue(token_budget=4, max_tokens=40)) as them:
            remote = await them.connected()
            asked = [ask(remote, 1)]
            await until(lambda: bool(runner.batches))
            asked += [ask(remote, n) for n in range(10)]
            await until(lambda: them.line.queue.tokens == 40)
            remote.check_admission(4)
            await fault(ask(remote, 50), Overloaded)
            remote.check_admission(3)
            for tokens in (4, 5, 1000):
                with pytest.raises(Overloaded):
                    remote.check_admission(tokens)
            assert adds_up(them.line)
            await remote.ask("metrics")
            assert (them.line.counts.received, them.line.counts.refused) == (15, 4)
            with pytest.raises(Overloaded):
                remote.check_admission(4)
            await until(lambda: them.line.counts.refused == 5)
            runner.release()
            await asyncio.gather(*asked)
            await until(lambda: is_open(remote), 1.0)
            assert told(await ask(remote, 5)) == [5]

    play(story)


def is_open(remote: EngineClient) -> bool:
    try:
        remote.check_admission(4)
    except ServiceError:
        return False
    return True


def test_a_request_that_is_too_large_does_not_close_the_door_for_others(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner, make_queue(token_budget=4, max_tokens=40)) as them:
            remote = await them.connected()
            first = ask(remote, 1, 2, 3)
            await until(lambda: them.line.queue.tokens == 8)
            await fault(ask(remote, *range(9)), Overloaded)
            remote.check_admission(4)
            runner.release()
            await first

    play(story)


def test_a_caller_who_leaves_is_gone_from_the_line_within_100_ms_and_never_runs(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner) as them:
            remote = await them.connected()
            first = ask(remote, 1)
            await until(lambda: bool(runner.batches))
            gone, stays = ask(remote, 2), ask(remote, 3)
            await until(lambda: them.line.unanswered == 3)
            gone.cancel()
            assert await until(lambda: them.line.unanswered == 2) < 0.1
            runner.release()
            await asyncio.gather(first, stays)
            assert runner.ran == {1: 1, 3: 1}
            assert them.line.counts.cancelled == 1

    play(story)


def test_a_caller_who_leaves_before_its_message_has_left_is_never_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with both(tmp_path) as them:
            remote = await them.connected()
            gone = ask(remote, 2)
            await asyncio.sleep(0)
            gone.cancel()
            assert told(await ask(remote, 3)) == [3]
            assert them.line.counts.received == 1

    play(story)


def test_a_process_that_dies_takes_only_its_own_callers_along(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner) as them:
            dying, living = await them.connected(), await them.connected()
            first = ask(living, 1)
            await until(lambda: bool(runner.batches))
            lost, kept = ask(dying, 2), ask(living, 3)
            await until(lambda: them.line.unanswered == 3)
            assert dying._writer is not None
            dying._writer.transport.abort()
            await until(lambda: them.line.unanswered == 2)
            runner.release()
            assert [told(answer) for answer in await asyncio.gather(first, kept)] == [[1], [3]]
            await fault(lost, Unavailable)
            assert runner.ran == {1: 1, 3: 1}

    play(story)


def test_an_engine_that_ends_answers_everyone_with_503_and_its_successor_is_found(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner) as them:
            remote = await them.connected()
            running = ask(remote, 1)
            await until(lambda: bool(runner.batches))
            waiting = ask(remote, 2)
            await until(lambda: them.line.unanswered == 2)
            runner.release()
            assert await them.stop_engine() == 0
            assert {type(r) for r in await asyncio.gather(running, waiting, return_exceptions=True)} <= {
                Unavailable,
                InferenceResult,
            }
            await until(lambda: remote._writer is None)
            assert (await fault(ask(remote, 3), Unavailable)).retry_after == 2.0
            them.engine = FakeEngine(runner, make_queue())
            await them.start_engine()
            await until(lambda: remote._writer is not None)
            assert told(await ask(remote, 4)) == [4]

    play(story)


def test_an_engine_that_says_nothing_does_not_hold_its_callers_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.workers.client.QUESTION_SECONDS", 0.05)

    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner) as them:
            remote = await them.connected()
            remote.patience_seconds = 0.05
            assert "does not answer" in (await fault(ask(remote, 1, timeout=0.01), Unavailable)).message
            await until(lambda: them.line.unanswered == 0)
            runner.release()

    play(story)


def test_questions_are_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with both(tmp_path) as them:
            remote = await them.connected()
            assert [await remote.ask("ready"), await remote.ask("info"), await remote.ask("metrics")] == [
                b"quite well",
                b'{"model":"fake"}',
                b"counts",
            ]

    play(story)


def test_an_engine_with_another_artifact_is_not_used(tmp_path: Path) -> None:
    async def story() -> None:
        async with both(tmp_path) as them:
            remote = await them.connect("another")
            await until(lambda: them.others == ["another"])
            assert not is_open(remote)

    play(story)


HELLO = wire.frame(wire.Hello(wire.VERSION))
WORK = wire.frame(wire.Cancel(1))
FOREIGN = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
    "too long": struct.pack("<I", 2**31),
    "no hello": WORK,
    "two hellos": HELLO + HELLO,
    "another version": wire.frame(wire.Hello(99)),
    "refusals by a line that was never full": HELLO + wire.frame(wire.RejectedLocally(1)),
    "fewer than no refusals": HELLO + wire.frame(wire.RejectedLocally(-1)),
    "an engine's message": HELLO + wire.frame(wire.QueryReply(1, b"")),
    "random": HELLO + struct.pack("<I", 5) + b"\xff\x00\xc1aa",
    "half a frame": HELLO + struct.pack("<I", 100) + b"half",
    "a frame over the limit": HELLO + struct.pack("<I", wire.MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_connection_that_speaks_otherwise_is_dropped_and_nobody_else_is_concerned(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with both(tmp_path, runner) as them:
            remote = await them.connected()
            kept = ask(remote, 1)
            await until(lambda: bool(runner.batches))
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(FOREIGN[name])
            writer.write_eof()
            while await reader.read(1000):
                pass
            writer.close()
            await until(lambda: len(them.server._peers) == 1)
            runner.release()
            assert told(await kept) == [1]

    play(story)
