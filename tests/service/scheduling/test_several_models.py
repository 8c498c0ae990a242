"""Several models share a queue: batches of one model each, in an order that counts seconds."""

import asyncio
from collections.abc import Callable

import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import DeadlineExceeded, Unavailable
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import FIRST_MODEL, ModelCost, Request
from packbert.service.scheduling.watchdog import Watchdog
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, sequence, settle
from tests.service.scheduling.serving import submit


class TwoModels:
    """The batchers of two models on one device."""

    def __init__(self, time: FakeTime, queue: RequestQueue, cost: ModelCost, *, seconds_per_token: float = 0.0) -> None:
        self.runners = FakeRunner(held=True), FakeRunner(held=True, seconds_per_token=seconds_per_token)
        watchdog = Watchdog(time.clock)
        self.first, self.second = (
            Batcher(run=runner.run, queue=queue, clock=time.clock, watchdog=watchdog, model=model)
            for runner, model in zip(self.runners, (FIRST_MODEL, cost), strict=True)
        )
        self.second.dispatcher = self.first.dispatcher

    async def __aenter__(self) -> "TwoModels":
        self._serving = asyncio.create_task(self.first.serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.first.fail_all("the end")
        self.second.fail_all("the end")
        await settle()
        self._serving.cancel()

    def submit(self, model: Batcher, number: int, length: int = 4) -> "asyncio.Task[list[int]]":
        async def rows() -> list[int]:
            request = await submit(model, [sequence(number, length)], timeout_seconds=60)
            return [int(row["cls"][0]) for row in request.rows]

        return asyncio.create_task(rows())

    def release(self) -> None:
        for runner in self.runners:
            runner.release()


def submit_all(model: Batcher, work: list[Tokens]) -> "asyncio.Task[Request]":
    return asyncio.create_task(submit(model, work, timeout_seconds=600))


def test_a_batch_has_sequences_of_one_model_and_each_request_the_rows_of_its_own() -> None:
    async def story(time: FakeTime) -> None:
        async with TwoModels(time, make_queue(token_budget=64), ModelCost()) as models:
            asked = [models.submit(models.second if i % 2 else models.first, i) for i in range(12)]
            await settle()
            models.release()
            assert await asyncio.gather(*asked) == [[i] for i in range(12)]
            first, second = (sorted(one.ran) for one in models.runners)
            assert (first, second) == ([*range(0, 12, 2)], [*range(1, 12, 2)])
            assert sum(len(one.batches) for one in models.runners) <= 4
            assert [one.counts.answered for one in (models.first, models.second)] == [6, 6]

    play(story)


def test_a_model_that_is_four_times_slower_counts_four_times_in_the_queue_and_fills_a_batch_with_a_quarter() -> None:
    async def story(time: FakeTime) -> None:
        async with TwoModels(time, make_queue(token_budget=32), ModelCost(scale=4.0, budget=16.0)) as models:
            busy = models.submit(models.first, 0)
            await settle()
            asked = [models.submit(models.second, i, length=2) for i in range(1, 5)]
            await settle()
            assert models.first.queue.tokens == 4 * 4 * 2
            models.release()
            await asyncio.gather(busy, *asked)
            assert models.runners[1].batches == [[1, 2], [3, 4]]

    play(story)


def test_the_smaller_of_two_requests_in_seconds_ends_first_though_it_has_as_many_tokens() -> None:
    async def story(time: FakeTime) -> None:
        queue = make_queue(token_budget=10, max_tokens=10_000, tokens_per_second=10.0)
        async with TwoModels(time, queue, ModelCost(scale=5.0), seconds_per_token=0.5) as models:
            models.runners[0].seconds_per_token = 0.1
            models.release()
            slow = submit_all(models.second, [sequence(1, 2) for _ in range(10)])  # 20 tokens: 10 s
            fast = submit_all(models.first, [sequence(2, 5) for _ in range(4)])  # 20 tokens: 2 s
            await asyncio.wait((slow, fast), return_when=asyncio.FIRST_COMPLETED)
            assert fast.done()  # it comes first, although it arrived later
            assert time.now < 5.0
            await slow

    play(story)


def test_a_suspended_model_refuses_its_own_requests_alone() -> None:
    async def story(time: FakeTime) -> None:
        async with TwoModels(time, make_queue(), ModelCost()) as models:
            lost, kept = models.submit(models.second, 1), models.submit(models.first, 2)
            await settle()
            models.second.suspend("it is wrong")
            models.release()
            assert await kept == [2]
            with pytest.raises(Unavailable, match="it is wrong"):
                await lost
            with pytest.raises(Unavailable, match="it is wrong"):
                await models.submit(models.second, 3)
            assert await models.submit(models.first, 4) == [4]

    play(story)


def test_a_model_that_cannot_be_loaded_is_tried_again_by_the_canary_alone() -> None:
    async def story(time: FakeTime) -> None:
        async with TwoModels(time, make_queue(), ModelCost()) as models:
            tries, second = 0, models.second

            async def enter(*_: object) -> bool:
                nonlocal tries
                tries += 1
                if tries == 1:
                    raise OSError("no such file")
                return True

            second.enter = enter
            models.release()
            for number in range(3):
                with pytest.raises(Unavailable, match="the model cannot be loaded: no such file"):
                    await models.submit(second, number)
            assert tries == 1
            await second.submit_exclusive([sequence(0)], timeout_seconds=60)
            assert tries == 2
            assert await models.submit(models.first, 1) == [1]

    play(story)


def test_the_deadline_of_a_request_holds_while_its_model_loads() -> None:
    async def story(time: FakeTime) -> None:
        async with TwoModels(time, make_queue(), ModelCost()) as models:
            second, loaded = models.second, asyncio.Event()

            async def enter(is_use: bool, is_wanted: Callable[[], bool]) -> bool:  # noqa: ARG001 - as Device.enter
                return await loaded.wait()

            second.enter = enter
            models.release()
            patient = models.submit(second, 1)
            with pytest.raises(DeadlineExceeded, match=r"after 2\.000 s .* and the model was loading"):
                await submit(second, [sequence(2)], timeout_seconds=2)
            assert time.now == 2.0
            loaded.set()
            assert await patient == [1]
            assert models.runners[1].ran == {1: 1}

    play(story)
