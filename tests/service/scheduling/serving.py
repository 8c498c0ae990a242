"""A batcher that serves, on a fake runner and a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.cores import Concurrency
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.watchdog import Watchdog
from tests.service.fakes import Answer, FakeRunner, FakeTime, adds_up, make_queue, sequence, settle, submit

PER_CORE = Concurrency(2, per_core=True)


@asynccontextmanager
async def serving(
    runner: FakeRunner, time: FakeTime, queue: RequestQueue | None = None, watchdog: Watchdog | None = None, **more: Any
) -> AsyncIterator[Batcher]:
    watchdog = watchdog or Watchdog(time.clock)
    batcher = Batcher(
        run=runner.run, queue=make_queue() if queue is None else queue, clock=time.clock, watchdog=watchdog, **more
    )
    serve = asyncio.create_task(batcher.dispatcher.serve())
    yield batcher
    batcher.close("closed")
    await serve
    await settle()
    assert adds_up(batcher)
    assert batcher.counts.in_flight == 0
    assert is_empty(batcher.queue)


def ask(batcher: Batcher, *numbers: int, length: int = 4, timeout: float = 1000.0) -> asyncio.Task[Answer]:
    return asyncio.create_task(submit(batcher, [sequence(n, length) for n in numbers], timeout_seconds=timeout))


def numbers(answer: Answer) -> list[int]:
    return [int(row["cls"][0]) for row in answer.rows]


async def outcomes(*tasks: asyncio.Task[Answer]) -> list[list[int] | type[BaseException]]:
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(r) if isinstance(r, BaseException) else numbers(r) for r in results]


def is_empty(queue: RequestQueue) -> bool:
    """All that was admitted has left, and the sums are zero."""
    return (queue.tokens, queue.held, queue.expected, queue.oldest) == (0, 0, 0, None)
