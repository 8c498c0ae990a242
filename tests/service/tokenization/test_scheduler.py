"""Turns on the tokenizer's thread: fewest characters first, none waits for ever, a cancelled request leaves at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from packbert.service.errors import Overloaded
from packbert.service.tokenization.jobs import MAX_UNQUEUED, OLDEST_EVERY, TokenizingScheduler
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
        self.scheduler = TokenizingScheduler(self.thread, lambda *sums: self.sums.append(sums))

    async def request(self, name: str, characters: int, steps: int) -> None:
        turns = self.scheduler.enter(characters * steps, queued=True)
        try:
            for left in range(steps, 0, -1):
                await self.scheduler.run(turns, characters * left, lambda: self.done.append(name))
        finally:
            self.scheduler.leave(turns)

    async def start(self, name: str, characters: int, steps: int) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.request(name, characters, steps))
        await settle()
        return task


def test_one_step_at_a_time_of_the_request_with_the_fewest_characters_left() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        for name, characters, steps in (("large", 5000, 2), ("middle", 2000, 1), ("small", 10, 1)):
            await scene.start(name, characters, steps)
            assert len(scene.thread.steps) == 1
        assert scene.sums[-1] == (3, 10_000 + 2000 + 10)
        while scene.thread.steps:
            await scene.thread.finish()
        assert scene.done == ["large", "small", "middle", "large"]
        assert scene.sums[-1] == (0, 0)

    play(story)


def test_smaller_requests_do_not_hold_up_a_large_one_for_ever() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        await scene.start("large", 1000, 5)
        number = 0
        while "large" not in scene.done[1:] or scene.done.count("large") < 5:
            await scene.start(f"small {number}", 10, 1)
            await scene.thread.finish()
            number += 1
        assert number <= 5 * OLDEST_EVERY

    play(story)


def test_a_cancelled_request_leaves_at_once_and_its_turn_goes_to_the_next() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        running = await scene.start("running", 100, 2)
        waiting = await scene.start("waiting", 50, 1)
        await scene.start("other", 80, 1)
        waiting.cancel()
        await settle()
        assert scene.sums[-1] == (2, 280)
        running.cancel()
        await settle()
        assert scene.sums[-1] == (1, 80)
        while scene.thread.steps:
            await scene.thread.finish()
        assert scene.done == ["other"]
        await scene.start("later", 10, 1)
        await scene.thread.finish()
        assert scene.done == ["other", "later"]

    play(story)


def test_a_request_that_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    async def story(_: FakeTime) -> None:
        scene = Scene()
        await scene.start("first", 10, 1)
        chosen = await scene.start("chosen", 20, 1)
        await scene.start("next", 30, 1)
        future, work = scene.thread.steps.pop(0)
        future.add_done_callback(lambda _: None)
        future.set_result(work())
        for _turn in range(20):  # turns of the loop
            if any(turns.granted and turns.granted.done() for turns in scene.scheduler._requests):
                break
            await asyncio.sleep(0)
        chosen.cancel()
        await settle()
        while scene.thread.steps:
            await scene.thread.finish()
        assert scene.done == ["first", "next"]
        assert scene.sums[-1] == (0, 0)

    play(story)


def test_what_no_queue_counts_is_refused_beyond_a_limit_unless_it_is_alone() -> None:
    async def story(_: FakeTime) -> None:
        scheduler = Scene().scheduler
        alone = scheduler.enter(2 * MAX_UNQUEUED, queued=False)
        with pytest.raises(Overloaded, match=f"{2 * MAX_UNQUEUED} characters of other requests wait for the tokenizer"):
            scheduler.enter(1, queued=False)
        admitted = scheduler.enter(MAX_UNQUEUED, queued=True)
        scheduler.leave(alone)
        scheduler.leave(scheduler.enter(MAX_UNQUEUED, queued=False))
        scheduler.leave(admitted)
        assert (scheduler.requests, scheduler.characters) == (0, 0)

    play(story)
