"""The engine's lifecycle on the golden BERT: the canary detects wrong answers; repeated failures end the process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import InferenceFailed, Unavailable
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
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
        one.batcher.admit(1, timeout_seconds=PATIENCE)
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
