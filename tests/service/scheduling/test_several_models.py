"""Several models share a queue: batches of one model each, in an order that counts seconds, none waits for a load."""

import asyncio

import pytest

from packbert.service.errors import DeadlineExceeded, Overloaded
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Chunk, QueuedModel, Request
from packbert.service.scheduling.watchdog import Watchdog
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, played, settle
from tests.service.scheduling.serving import ask, is_empty, numbers, outcomes
from tests.service.scheduling.simulation import tokens_of


class TwoModels:
    """The batchers of two models on one device. `loads`: how often the second one was to be loaded."""

    def __init__(self, time: FakeTime, queue: RequestQueue | None = None, model: QueuedModel | None = None) -> None:
        self.runners = FakeRunner(held=True), FakeRunner(held=True)
        self.queue, self.loads = queue or make_queue(token_budget=64), 0
        watchdog = Watchdog(time.clock)
        self.first, self.second = (
            Batcher(run=runner.run, queue=self.queue, clock=time.clock, watchdog=watchdog, model=one, load=self.load)
            for runner, one in zip(self.runners, (QueuedModel(), model or QueuedModel()), strict=True)
        )
        self.second.share(self.first.dispatcher)

    def load(self) -> None:
        self.loads += 1

    async def __aenter__(self) -> "TwoModels":
        self._serving = asyncio.create_task(self.first.dispatcher.serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.run()
        for one in (self.first, self.second):
            one.fail_all("the end")
        await settle()
        assert adds_up(self.first)
        assert adds_up(self.second)
        assert is_empty(self.queue)
        await self._serving

    def run(self, *seconds_per_token: float) -> None:
        """The batches of both models end from now on."""
        for runner, seconds in zip(self.runners, seconds_per_token or (0.0, 0.0), strict=True):
            runner.seconds_per_token = seconds
            runner.release()


@played
async def test_a_batch_has_one_model_and_each_request_its_own_rows(time: FakeTime) -> None:
    async with TwoModels(time) as models:
        asked = [ask(models.second if i % 2 else models.first, i) for i in range(12)]
        await settle()
        models.run()
        assert await outcomes(*asked) == [[i] for i in range(12)]
        assert [sorted(one.ran) for one in models.runners] == [[*range(0, 12, 2)], [*range(1, 12, 2)]]
        assert sum(len(one.batches) for one in models.runners) <= 4
        assert [one.counts.answered for one in (models.first, models.second)] == [6, 6]


@played
async def test_a_model_four_times_slower_fills_a_batch_with_a_quarter(time: FakeTime) -> None:
    async with TwoModels(time, make_queue(token_budget=32), QueuedModel(scale=4.0, budget=16.0)) as models:
        busy = ask(models.first, 0)
        await settle()
        asked = [ask(models.second, i, length=2) for i in range(1, 5)]
        await settle()
        assert (models.queue.tokens, models.queue.held) == (4 * 4 * 2, 4 * 2)
        models.run()
        assert await outcomes(busy, *asked) == [[0], [1], [2], [3], [4]]
        assert models.runners[1].batches == [[1, 2], [3, 4]]


@played
async def test_the_smaller_of_two_requests_in_seconds_ends_first(time: FakeTime) -> None:
    queue = make_queue(token_budget=10, max_tokens=10_000, tokens_per_second=10.0)
    async with TwoModels(time, queue, QueuedModel(scale=5.0)) as models:
        models.run(0.1, 0.5)
        slow = ask(models.second, *[1] * 10, length=2)  # 20 tokens: 10 s
        fast = ask(models.first, *[2] * 4, length=5)  # 20 tokens: 2 s
        assert numbers(await fast) == [2] * 4
        assert time.now < 5.0
        assert not slow.done()
        await slow


@pytest.mark.parametrize("window", [64, 2**62])
def test_a_slow_model_is_admitted_beside_a_faster_one_as_if_alone(window: int) -> None:
    """The default model is eleven times faster: a token of the slow one costs eleven of its tokens."""
    for tokens, patience in ((3000, 1e9), (3000, 30.0), (10, 1e9), (300, 60.0)):
        ends = []
        for scale in (1, 11):
            queue = make_queue(
                token_budget=32 * scale, max_tokens=1000, max_wait_seconds=10.0, tokens_per_second=100.0 * scale
            )
            model = QueuedModel(scale=scale, budget=32.0 * scale, window=window)
            ends.append([outcome(queue, model, tokens, patience) for _ in range(200)])
        assert ends[0] == ends[1]
        assert ends[0][0] == "admitted" != ends[0][-1]


def outcome(queue: RequestQueue, model: QueuedModel, tokens: int, patience: float) -> str:
    request = Request(arrived=0.0, deadline=patience, tokens=tokens, model=model)
    try:
        queue.admit(request)
    except Overloaded as refusal:
        return refusal.message
    queue.add(request, Chunk([tokens_of(10)], left=tokens - 10))
    return "admitted"


@played
async def test_a_model_is_served_while_another_is_loaded_once_for_all(time: FakeTime) -> None:
    async with TwoModels(time) as models:
        models.run(0.01, 0.01)
        await models.second.hold()
        cold = [ask(models.second, n) for n in range(5)]
        for n in range(20):
            began = time.now
            assert numbers(await ask(models.first, n)) == [n]
            assert time.now - began == pytest.approx(0.04)
        cold.append(ask(models.second, 5))
        await settle()
        assert (models.loads, models.runners[1].batches, models.queue.tokens) == (1, [], 0)
        models.second.release()
        assert await outcomes(*cold) == [[n] for n in range(6)]
        assert models.loads == 1


@played
async def test_a_model_is_put_out_after_its_batch_or_its_first_run(time: FakeTime) -> None:
    async with TwoModels(time) as models:
        second, (_, runner) = models.second, models.runners
        running = ask(second, 1)
        await settle()
        holding, waiting = asyncio.create_task(second.hold()), ask(second, 2)
        await settle()
        assert not holding.done()
        models.run()
        await holding
        assert await outcomes(running) == [[1]]
        await settle()
        assert (runner.batches, models.loads) == ([[1]], 1)
        runner.hold()
        second.release()
        holding = asyncio.create_task(second.hold())  # for another model, before it has run anything
        await settle()
        assert (runner.batches, holding.done()) == ([[1], [2]], False)
        runner.release()
        assert await outcomes(waiting) == [[2]]
        await holding
        cold = ask(second, 3)
        await settle()
        assert runner.batches == [[1], [2]]
        cold.cancel()


@played
async def test_the_deadline_of_a_request_holds_while_its_model_loads(time: FakeTime) -> None:
    async with TwoModels(time) as models:
        models.run()
        await models.second.hold()
        patient = ask(models.second, 1)
        with pytest.raises(DeadlineExceeded, match=r"after 2\.000 s .* and the model was loading"):
            await ask(models.second, 2, timeout=2.0)
        assert time.now == 2.0
        models.second.release()
        assert numbers(await patient) == [1]
        assert models.runners[1].ran == {1: 1}
