"""A batcher that serves, on a fake runner and a fake clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from packbert.model_export.artifact.batch import Tokens
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Request
from packbert.service.scheduling.watchdog import Watchdog
from tests.service.fakes import FakeRunner, FakeTime, adds_up, make_queue, sequence, settle

PER_CORE = Concurrency(2, per_core=True)


@asynccontextmanager
async def serving(
    runner: FakeRunner,
    time: FakeTime,
    queue: RequestQueue | None = None,
    watchdog: Watchdog | None = None,
    **more: Any,
) -> AsyncIterator[Batcher]:
    watchdog = watchdog or Watchdog(time.clock)
    batcher = Batcher(
        run=runner.run, queue=make_queue() if queue is None else queue, clock=time.clock, watchdog=watchdog, **more
    )
    serve = asyncio.create_task(batcher.serve())
    yield batcher
    batcher.close("closed")
    await serve
    await settle()
    assert adds_up(batcher)
    assert batcher.counts.in_flight == 0
    assert batcher.queue.tokens == 0


async def submit(batcher: Batcher, work: Sequence[Tokens], *, timeout_seconds: float) -> Request:
    """The request with a row for each of its sequences. Raises what ends it."""
    return await batcher.begin(work, timeout_seconds=timeout_seconds).finish()


def ask(batcher: Batcher, *numbers: int, length: int = 4, timeout: float = 1000.0) -> asyncio.Task[Request]:
    return asyncio.create_task(submit(batcher, [sequence(n, length) for n in numbers], timeout_seconds=timeout))


def numbers(answer: Request) -> list[int]:
    return [int(row["cls"][0]) for row in answer.rows]


async def outcomes(*tasks: asyncio.Task[Request]) -> list[list[int] | type[BaseException]]:
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(r) if isinstance(r, BaseException) else numbers(r) for r in results]
