"""Turns on the tokenizer's thread: a chunk of each request, whose end, late or cancelled, leaves nothing behind."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from packbert.service.errors import DeadlineExceeded, Overloaded
from packbert.service.tokenization.chunks import MAX_WAITING, Turns
from packbert.service.turns import DEADLINE, Deadline
from tests.service.fakes import FakeTime, play, settle


class FakeThread(Executor):
    """Steps end when `finish` is called, in their order."""

    def __init__(self) -> None:
        self.steps: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.steps.append((future, lambda: work(*args)))
        return future

    async def finish(self) -> None:
        future, work = self.steps.pop(0)
        if future.set_running_or_notify_cancel():
            future.set_result(work())
        await settle()


class Scene:
    def __init__(self) -> None:
        self.thread, self.sums, self.done = FakeThread(), [(0, 0)], list[str]()
        self.turns = Turns(self.thread, lambda *sums: self.sums.append(sums))

    async def request(self, name: str, characters: int, steps: int) -> None:
        for _ in range(steps):
            await self.turns.run(lambda: self.done.append(name), characters, queued=True)

    async def start(self, name: str, characters: int, steps: int = 1) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.request(name, characters, steps))
        await settle()
        return task

    async def finish_all(self) -> list[str]:
        while self.thread.steps:
            await self.thread.finish()
        assert self.sums[-1] == (self.turns.requests, self.turns.characters) == (0, 0)
        return self.done


def test_requests_take_turns_a_chunk_each() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        for name, characters, steps in (("large", 5000, 3), ("middle", 2000, 2), ("small", 10, 1)):
            await scene.start(name, characters, steps)
        assert scene.sums[-1] == (3, 5000 + 2000 + 10)
        assert await scene.finish_all() == ["large", "middle", "small", "large", "middle", "large"]

    play(story)


def test_a_cancelled_request_and_a_late_one_leave_at_once_and_read_nothing_more() -> None:
    async def story(time: FakeTime) -> None:
        scene = Scene()
        running = await scene.start("running", 100, 2)
        waiting = await scene.start("waiting", 50)
        DEADLINE.set(Deadline(5.0))
        late = await scene.start("late", 30)
        DEADLINE.set(Deadline(1000.0))
        await scene.start("other", 80)
        for task, left in ((waiting, (3, 210)), (running, (2, 110))):
            task.cancel()
            await settle()
            assert scene.sums[-1] == left
        with pytest.raises(DeadlineExceeded, match=r"the deadline passed after 5\.000 s, before the texts were"):
            await late
        assert 0 < time.now <= 5.0
        assert scene.sums[-1] == (1, 80)
        assert await scene.finish_all() == ["other"]

    play(story)


def test_what_no_queue_has_admitted_is_refused_beyond_a_limit_unless_it_is_alone() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        alone = asyncio.create_task(scene.turns.run(lambda: None, 2 * MAX_WAITING))
        await settle()
        with pytest.raises(
            Overloaded, match=f"{2 * MAX_WAITING} characters wait for the tokenizer, and this"
        ) as caught:
            await scene.turns.run(lambda: None, 1)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 30
        await scene.start("admitted", MAX_WAITING)
        assert await scene.finish_all() == ["admitted"]
        await alone

    play(story)
