"""The engine's lifecycle on the golden BERT: the canary detects wrong answers; repeated failures end the process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import InferenceFailed, Unavailable
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from tests.service.fakes import adds_up, on_loop, opened, sequence, submit

PATIENCE = 30.0  # seconds for what takes a fraction of one


def engine(folder: Path, *, self_check_seconds: float = 0.02, **more: str) -> ModelEngine:
    variables = {"BERT_MODEL": str(folder), "BERT_TOKEN_BUDGET": "64", "BERT_THREADS": "1"}
    settings = Settings.from_environment(variables | more)
    return ModelEngine(open_artifact(folder), settings, Metrics(), self_check_seconds=self_check_seconds)


async def broken(_: Sequence[Tokens], **__: object) -> None:
    raise RuntimeError("the device is gone")


@on_loop
async def test_a_busy_engine_runs_its_canary_after_a_hundred_batches(bert_artifact: Path) -> None:
    async with opened(engine(bert_artifact, self_check_seconds=1000)) as one:  # the first batch
        for _ in range(99):
            assert one.batcher.counts.received == one.batcher.counts.answered
            await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
        again = asyncio.Event()
        one.batcher.report = lambda _: again.set()
        async with asyncio.timeout(PATIENCE):
            await again.wait()
        assert (one.batcher.counts.received, one.batcher.canaries.received) == (99, 2)


@on_loop
async def test_the_queue_holds_a_batch_and_each_core_is_watched(bert_artifact: Path) -> None:
    async with opened(
        engine(bert_artifact, BERT_THREADS="2", BERT_TOKEN_BUDGET="0", BERT_MAX_WAITING_TOKENS="64")
    ) as one:
        assert one.batcher.queue.max_tokens == one.batcher.queue.token_budget >= 128
        assert one.batcher.concurrency.per_core
        assert one.batcher.watchdog.side_by_side


@on_loop
async def test_when_every_run_fails_the_process_ends_and_requests_get_503(bert_artifact: Path) -> None:
    async with opened(engine(bert_artifact)) as one:
        ended = asyncio.Event()
        one.device.on_fatal = ended.set
        one.batcher.run = broken  # type: ignore[assignment]
        with pytest.raises(InferenceFailed):
            await submit(one.batcher, [sequence(5)], timeout_seconds=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        assert one.readiness() == "every run fails: the model failed: RuntimeError"
        with pytest.raises(Unavailable, match="every run fails"):
            one.batcher.admit(1, timeout_seconds=PATIENCE)
    assert adds_up(one.batcher)


@on_loop
async def test_an_error_in_the_dispatch_loop_leaves_no_request_waiting(bert_artifact: Path) -> None:
    async with opened(engine(bert_artifact)) as one:
        ended = asyncio.Event()
        one.device.on_fatal = ended.set
        one.batcher.report = lambda report: report.no_such_fact  # type: ignore[attr-defined]
        callers = [submit(one.batcher, [sequence(5, 40)], timeout_seconds=PATIENCE) for _ in range(5)]
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(end) for end in ends[1:]] == [Unavailable] * 4
        assert ended.is_set()
        assert "the dispatch loop stopped" in one.readiness()
