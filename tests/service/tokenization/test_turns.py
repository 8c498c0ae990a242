"""Turns on the tokenizer's thread: a step of each request, a cancelled one leaves at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from packbert.service.errors import Overloaded
from packbert.service.tokenization.jobs import MAX_UNQUEUED, Turns
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
        with self.turns.enter(characters * steps, queued=True) as turn:
            for left in range(steps, 0, -1):
                await turn.run(lambda: self.done.append(name), characters * left)

    async def start(self, name: str, characters: int, steps: int) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.request(name, characters, steps))
        await settle()
        return task


def test_requests_take_turns_a_step_each() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        for name, characters, steps in (("large", 5000, 3), ("middle", 2000, 2), ("small", 10, 1)):
            await scene.start(name, characters, steps)
        assert scene.sums[-1] == (3, 15_000 + 4000 + 10)
        while scene.thread.steps:
            await scene.thread.finish()
        assert scene.done == ["large", "middle", "small", "large", "middle", "large"]
        assert scene.sums[-1] == (0, 0)

    play(story)


def test_a_cancelled_request_leaves_at_once_and_does_no_further_step() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        running = await scene.start("running", 100, 2)
        waiting = await scene.start("waiting", 50, 1)
        await scene.start("other", 80, 1)
        for task, left in ((waiting, (2, 280)), (running, (1, 80))):
            task.cancel()
            await settle()
            assert scene.sums[-1] == left
        while scene.thread.steps:
            await scene.thread.finish()
        assert scene.done == ["other"]
        assert scene.sums[-1] == (0, 0)

    play(story)


def test_what_no_queue_counts_is_refused_beyond_a_limit_unless_it_is_alone() -> None:
    turns = Scene().turns
    with turns.enter(2 * MAX_UNQUEUED, queued=False):
        message = f"{2 * MAX_UNQUEUED} characters of other requests wait for the tokenizer"
        with pytest.raises(Overloaded, match=message), turns.enter(1, queued=False):
            pass
    with turns.enter(MAX_UNQUEUED, queued=True), turns.enter(MAX_UNQUEUED, queued=False):
        pass
    assert (turns.requests, turns.characters) == (0, 0)
