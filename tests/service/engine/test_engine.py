"""The engine's lifecycle on the golden BERT: the canary detects wrong answers; repeated failures end the process."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.calibration import Calibration
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import InferenceFailed, Overloaded, Unavailable
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks.embed import embed
from packbert.service.tasks.flow import answer_request
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.turns import DEADLINE, Deadline
from tests.export.goldens import Artifact as Exported
from tests.service.fakes import adds_up, on_loop, opened, sequence, submit

PATIENCE = 30.0  # seconds for what takes a fraction of one


def settings_for(artifact: Artifact, **more: str) -> Settings:
    variables = {
        "BERT_MODEL": str(artifact.folder.parent),
        "BERT_TOKEN_BUDGET": "64",
        "BERT_THREADS": "1",
    }
    return Settings.from_environment(variables | more)


def engine(artifact: Artifact, *, self_check_seconds: float = 0.02, **more: str) -> ModelEngine:
    return ModelEngine(artifact, settings_for(artifact, **more), Metrics(), self_check_seconds=self_check_seconds)


def idle_engine(artifact: Artifact, **more: str) -> ModelEngine:
    """Its canary does not run again while a test lasts."""
    return engine(artifact, self_check_seconds=1000, **more)


async def broken(_: Sequence[Tokens], **__: object) -> None:
    raise RuntimeError("the device is gone")


@on_loop
async def test_an_engine_admits_requests_until_it_drains(bert_artifact: Path) -> None:
    one = idle_engine(open_artifact(bert_artifact))
    assert one.readiness() == "loading"
    await one.open()
    assert one.readiness() == ""
    one.check_admission(1)
    assert one.tasks.manifest == one.artifact.manifest
    one.health.draining = True
    assert one.readiness() == "draining"
    await one.close()
    with pytest.raises(Unavailable, match="shutting down"):
        one.check_admission(1)


@on_loop
async def test_a_wrong_canary_makes_the_engine_not_ready_and_the_process_continues(bert_artifact: Path) -> None:
    artifact = open_artifact(bert_artifact)
    canary = artifact.manifest.golden[0]
    wrong = dataclasses.replace(canary, cls=(canary.cls[0] + 2 * canary.tolerance, *canary.cls[1:]))
    manifest = dataclasses.replace(artifact.manifest, golden=(wrong, *artifact.manifest.golden[1:]))
    async with opened(engine(dataclasses.replace(artifact, manifest=manifest))) as one:
        assert "the canary's vector is wrong by" in one.readiness()
        assert one.health.fault == ""


@on_loop
async def test_an_engine_whose_canary_is_wrong_admits_no_request(bert_artifact: Path) -> None:
    async with opened(idle_engine(open_artifact(bert_artifact))) as one:
        one._canary.vector = one._canary.vector + 1
        await one._canary.check()
        assert "the canary's vector is wrong" in one.readiness()
        with pytest.raises(Unavailable, match="wrong answers"):
            await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
        assert one.batcher.counts.refused == 1


@on_loop
async def test_an_idle_engine_runs_its_canary(bert_artifact: Path) -> None:
    async with opened(engine(open_artifact(bert_artifact))) as one:
        again = asyncio.Event()
        one.batcher.report = lambda _: again.set()
        async with asyncio.timeout(PATIENCE):
            await again.wait()
    assert adds_up(one.batcher)


@on_loop
async def test_a_busy_engine_runs_its_canary_after_a_hundred_batches(bert_artifact: Path) -> None:
    one = engine(open_artifact(bert_artifact), self_check_seconds=1000)
    await one.open()  # the first batch
    for _ in range(99):
        assert one.batcher.counts.received == one.batcher.counts.answered
        await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
    again = asyncio.Event()
    one.batcher.report = lambda _: again.set()
    async with asyncio.timeout(PATIENCE):
        await again.wait()
    assert (one.batcher.counts.received, one.batcher.canaries.received) == (99, 2)
    await one.close()


@on_loop
async def test_the_queue_holds_a_batch_and_each_core_is_watched(bert_artifact: Path) -> None:
    async with opened(
        engine(open_artifact(bert_artifact), BERT_THREADS="2", BERT_TOKEN_BUDGET="0", BERT_MAX_WAITING_TOKENS="64")
    ) as one:
        assert one.batcher.queue.max_tokens == one.batcher.queue.token_budget >= 128
        assert one.batcher.concurrency.per_core
        assert one.batcher.watchdog.side_by_side


@on_loop
async def test_when_every_run_fails_the_process_ends_and_requests_get_503(bert_artifact: Path) -> None:
    one, ended = engine(open_artifact(bert_artifact)), asyncio.Event()
    await one.open()
    one.device.on_fatal = ended.set
    one.batcher.run = broken  # type: ignore[assignment]
    with pytest.raises(InferenceFailed):
        await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    assert one.readiness() == "every run fails: the model failed: RuntimeError"
    with pytest.raises(Unavailable, match="every run fails"):
        one.batcher.check_admission(1)
    await one.close()
    assert adds_up(one.batcher)


@on_loop
async def test_an_error_in_the_dispatch_loop_leaves_no_request_waiting(bert_artifact: Path) -> None:
    one, ended = engine(open_artifact(bert_artifact)), asyncio.Event()
    await one.open()
    one.device.on_fatal = ended.set
    one.batcher.report = lambda report: report.no_such_fact  # type: ignore[attr-defined]
    callers = [asyncio.create_task(submit(one.batcher, [sequence(5, 40)], timeout_seconds=PATIENCE)) for _ in range(5)]
    ends = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(end) for end in ends[1:]] == [Unavailable] * 4
    assert ended.is_set()
    assert "the dispatch loop stopped" in one.readiness()
    await one.close()


@on_loop
async def test_a_hanging_run_makes_the_engine_not_ready_and_fails_requests(bert_artifact: Path) -> None:
    one, ended, never = (
        engine(open_artifact(bert_artifact), BERT_RUN_TIMEOUT_SECONDS="1"),
        asyncio.Event(),
        asyncio.Event(),
    )
    await one.open()
    one.device.on_fatal = ended.set
    one.batcher.run = lambda _, *, all_cores: never.wait()  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="stuck"):
        await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
    assert ended.is_set()
    assert one.readiness() == "stuck: a run has lasted 1 s (BERT_RUN_TIMEOUT_SECONDS)"
    await one.close()
    never.set()


def test_a_refusal_before_the_body_is_cheap_and_counted(bert_artifact: Path) -> None:
    async def story() -> float:
        one = idle_engine(open_artifact(bert_artifact), BERT_MAX_WAITING_TOKENS="128")
        await one.open()
        never = asyncio.Event()
        one.batcher.run = lambda _, *, all_cores: never.wait()  # type: ignore[assignment]
        waiting = [
            asyncio.create_task(submit(one.batcher, [sequence(5, 64)], timeout_seconds=PATIENCE)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        began = time.thread_time()  # another process may take the core meanwhile
        for _ in range(100):
            with pytest.raises(Overloaded):
                one.check_admission(1)
        took = time.thread_time() - began
        assert one.batcher.counts.refused == 100
        assert adds_up(one.batcher)
        one.batcher.fail_all("end")
        await asyncio.gather(*waiting, return_exceptions=True)
        never.set()
        await one.close()
        return took / 100

    assert asyncio.run(story()) < 0.001


MIB = 2**20
Pair = Callable[..., AbstractAsyncContextManager[list[ModelEngine]]]


@pytest.fixture
def two(bert_artifact: Path, exported: Callable[..., Exported]) -> Pair:
    """Opens the engines of two models on one device; `rates`: the tokens a second that were measured of them."""

    @asynccontextmanager
    async def both(*rates: float, memory: int = 0, **more: str) -> AsyncIterator[list[ModelEngine]]:
        first, second = open_artifact(bert_artifact), open_artifact(exported("sample").root)
        one = idle_engine(first, **more)
        other = ModelEngine(second, settings_for(second, **more), Metrics(), device=one.device)
        for each, rate in zip((one, other), rates, strict=False):
            known = Calibration(
                token_budget=64, tokens_per_second=rate, batch_invariant=True, smallest_cosine=1.0, canary_error=0.0
            )
            sizes = each.artifact.manifest.sizes
            one.device.calibrations[*sorted(sizes.items()), each.artifact.manifest.precision] = known
        for each in (one, other):
            each.memory_bytes = memory
            await each.open()
        yield [one, other]
        for each in (other, one):
            await each.close()

    return both


async def embed_all(one: ModelEngine, texts: Sequence[str]) -> int:
    DEADLINE.set(Deadline(PATIENCE, 10 * PATIENCE))
    result = await answer_request(one.tasks, embed, EmbedRequest(inputs=[*texts]))
    return len(result.value)


@on_loop
async def test_a_thousand_sentences_to_a_slow_model_are_admitted(two: Pair) -> None:
    """The queue counts tokens of the default: 25 of them for each of the sentences' tokens, 400,000 in all."""
    async with two(500_000.0, 20_000.0) as (default, slow):
        assert slow.batcher.model.scale == pytest.approx(25.0)
        sentences = ["the cat sat on the mat and it was warm there for a while"] * 1000
        assert await embed_all(slow, sentences) == await embed_all(default, sentences) == 1000
        assert [one.batcher.counts.answered for one in (default, slow)] == [1, 1]


@on_loop
async def test_a_model_answers_while_another_one_is_loaded(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(memory=400 * MIB, BERT_MEMORY_LIMIT="500MiB") as (cold, hot):
        loading, may_load, load = threading.Event(), threading.Event(), cold._load

        def wait_and_load(_: ModelEngine, *how: Any) -> None:
            loading.set()
            may_load.wait(PATIENCE)
            load(*how)

        monkeypatch.setattr(ModelEngine, "_load", wait_and_load)
        hot.device.memory_limit = 1000 * MIB
        waits = asyncio.create_task(embed_all(cold, ["the cat"]))
        await asyncio.to_thread(loading.wait, PATIENCE)
        for _ in range(3):
            assert await embed_all(hot, ["it rains"]) == 1
        assert not waits.done()
        may_load.set()
        assert await waits == 1
