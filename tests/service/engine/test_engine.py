"""The lifecycle, on the golden BERT and a real runtime: a pulse that tells when answers are wrong, and an end when there are none."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_export.artifact.batch import Tokens
from service.artifact import Artifact, open_artifact
from service.engine.engine import Engine
from service.errors import InferenceFailed, Overloaded, Unavailable
from service.metrics import Metrics
from service.settings import Settings
from tests.service.fakes import adds_up, sequence

PATIENCE = 30.0  # seconds for what takes a fraction of one


def engine(artifact: Artifact, **settings: str) -> Engine:
    variables = {
        "BERT_ARTIFACT": str(artifact.folder.parent),
        "BERT_SELF_CHECK_SECONDS": "0.02",
        "BERT_TOKEN_BUDGET": "64",
        "BERT_THREADS": "1",
    }
    return Engine(artifact, Settings.from_environment(variables | settings), Metrics())


async def broken(_: Sequence[Tokens], **__: object) -> None:
    raise RuntimeError("the device is gone")


def test_it_is_ready_when_its_canary_was_right_and_not_any_more_when_draining(bert_artifact: Path):
    async def story() -> None:
        one = engine(open_artifact(bert_artifact))
        assert one.readiness() == "loading"
        with pytest.raises(Unavailable, match="loading"):
            _ = one.tasks
        await one.open()
        assert one.readiness() == ""
        one.check_admission(1)
        one.drain()
        assert one.readiness() == "draining"
        with pytest.raises(Unavailable, match="shutting down"):
            one.check_admission(1)
        await one.close()

    asyncio.run(story())


def test_a_canary_whose_vector_is_not_the_known_one_makes_it_not_ready_and_the_process_goes_on(bert_artifact: Path):
    artifact = open_artifact(bert_artifact)
    canary = artifact.manifest.golden[0]
    wrong = dataclasses.replace(canary, cls=(canary.cls[0] + 2 * canary.tolerance, *canary.cls[1:]))
    manifest = dataclasses.replace(artifact.manifest, golden=(wrong, *artifact.manifest.golden[1:]))

    async def story() -> None:
        one = engine(Artifact(artifact.folder, manifest))
        await one.open()
        assert "the canary's vector is wrong by" in one.readiness()
        assert one.health.fault == ""
        await one.close()

    asyncio.run(story())


def test_an_idle_engine_keeps_proving_itself(bert_artifact: Path):
    async def story() -> None:
        one = engine(open_artifact(bert_artifact))
        await one.open()
        again = asyncio.Event()
        one.batcher.report = lambda _: again.set()
        async with asyncio.timeout(PATIENCE):
            await again.wait()
        await one.close()
        assert adds_up(one.batcher)

    asyncio.run(story())


def test_a_busy_engine_proves_itself_after_a_hundred_batches(bert_artifact: Path):
    async def story() -> None:
        one = engine(open_artifact(bert_artifact), BERT_SELF_CHECK_SECONDS="1000")
        await one.open()  # the first batch
        for _ in range(99):
            assert one.batcher.counts.received == one.batcher.counts.answered
            await one.batcher.submit([sequence(5)], timeout_seconds=PATIENCE)
        again = asyncio.Event()
        one.batcher.report = lambda _: again.set()
        async with asyncio.timeout(PATIENCE):
            await again.wait()
        assert one.batcher.counts.received == 101
        await one.close()

    asyncio.run(story())


def test_the_line_takes_a_batch_at_least_and_lanes_are_watched_one_by_one(bert_artifact: Path):
    async def story() -> None:
        one = engine(
            open_artifact(bert_artifact), BERT_THREADS="2", BERT_TOKEN_BUDGET="0", BERT_MAX_WAITING_TOKENS="64"
        )
        await one.open()
        assert one.batcher.queue.max_tokens == one.batcher.queue.token_budget >= 128
        assert one.batcher.concurrency.per_core
        assert one.batcher.watchdog.side_by_side
        await one.close()

    asyncio.run(story())


def test_when_every_run_fails_the_process_is_to_end_and_callers_are_told(bert_artifact: Path):
    async def story() -> None:
        one, ended = engine(open_artifact(bert_artifact)), asyncio.Event()
        await one.open()
        one.on_failure = ended.set
        one.batcher.run = broken  # type: ignore[assignment]
        with pytest.raises(InferenceFailed):
            await one.batcher.submit([sequence(5)], timeout_seconds=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        assert one.readiness() == "every run fails: the model failed: RuntimeError"
        with pytest.raises(Unavailable, match="every run fails"):
            one.check_admission(1)
        await one.close()
        assert adds_up(one.batcher)

    asyncio.run(story())


def test_a_fault_in_the_serving_loop_itself_leaves_nobody_waiting(bert_artifact: Path):
    async def story() -> None:
        one, ended = engine(open_artifact(bert_artifact)), asyncio.Event()
        await one.open()
        one.on_failure = ended.set
        one.batcher.report = lambda report: report.no_such_fact  # type: ignore[attr-defined, no-any-return]
        callers = [
            asyncio.create_task(one.batcher.submit([sequence(5, 40)], timeout_seconds=PATIENCE)) for _ in range(5)
        ]
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(end) for end in ends[1:]] == [Unavailable] * 4
        assert ended.is_set()
        assert "the line stopped" in one.readiness()
        await one.close()

    asyncio.run(story())


def test_a_run_that_hangs_makes_it_not_ready_and_gives_up_its_callers(bert_artifact: Path):
    async def story() -> None:
        one, ended, never = (
            engine(open_artifact(bert_artifact), BERT_RUN_TIMEOUT_SECONDS="1"),
            asyncio.Event(),
            asyncio.Event(),
        )
        await one.open()
        one.on_failure = ended.set
        one.batcher.run = lambda _, *, all_cores: never.wait()  # type: ignore[assignment, return-value]
        with pytest.raises(Unavailable, match="stuck"):
            await one.batcher.submit([sequence(5)], timeout_seconds=PATIENCE)
        assert ended.is_set()
        assert one.readiness() == "stuck: a run has lasted 1 s (BERT_RUN_TIMEOUT_SECONDS)"
        await one.close()
        never.set()

    asyncio.run(story())


def test_a_refusal_before_the_body_is_read_costs_less_than_a_millisecond_and_is_counted(bert_artifact: Path):
    async def story() -> float:
        one = engine(open_artifact(bert_artifact), BERT_MAX_WAITING_TOKENS="64")
        await one.open()
        never = asyncio.Event()
        one.batcher.run = lambda _, *, all_cores: never.wait()  # type: ignore[assignment, return-value]
        waiting = [
            asyncio.create_task(one.batcher.submit([sequence(5, 64)], timeout_seconds=PATIENCE)) for _ in range(1)
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
