"""Fakes around the queue: a clock that never waits, a model runner that answers, fails or hangs on request."""

import asyncio
import math
import selectors
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import OutOfMemory, ServiceError
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import InferenceQueue, Request

T = TypeVar("T")
THREAD_SECONDS = 10.0  # for a thread to end, on a busy machine


class FakeTime(selectors.DefaultSelector):
    """A loop with this selector never waits: the clock goes on instead. It raises where it would wait for ever, and
    waits for a thread where that is all there is."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(THREAD_SECONDS if timeout is None else 0)
        if timeout is None and not events:
            raise RuntimeError("every task waits, and no event or timer is left")
        if not events:
            self.now += timeout or 0.0
        return events

    def clock(self) -> float:
        return self.now


class FakeLoop(asyncio.SelectorEventLoop):
    def __init__(self, time: FakeTime) -> None:
        self._fake = time
        super().__init__(time)

    def time(self) -> float:
        return self._fake.now


def play(story: Callable[[FakeTime], Coroutine[Any, Any, T]]) -> T:
    """Runs `story` to its end on a loop of its own whose time is fake."""
    time = FakeTime()
    with asyncio.Runner(loop_factory=lambda: FakeLoop(time)) as runner:
        return runner.run(story(time))


async def settle(turns: int = 20) -> None:
    """Until every task that can go on has gone on."""
    for _ in range(turns):
        await asyncio.sleep(0)


def sequence(number: int, length: int = 4) -> Tokens:
    """Its ids are its number, so that its answer is different from any other."""
    return Tokens(ids=np.full(length, number, np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


class FakeRunner:
    """Answers each sequence with its number; `held` runs wait for `release`; `poisoned` numbers fail their run."""

    def __init__(self, *, seconds_per_token: float = 0.0, held: bool = False, per_core: int = 1) -> None:
        self.seconds_per_token = seconds_per_token
        self.poisoned: set[int] = set()
        self.not_finite: set[int] = set()
        self.always_fails = False  # every run raises
        self.drops_last_row = False  # every run loses its last row
        self.max_tokens = 10**9  # a larger batch is out of memory
        self.batches: list[list[int]] = []
        self.lengths: list[int] = []
        self._device = asyncio.Semaphore(per_core)  # so many runs at a time, however many are in flight
        self.all_cores: list[bool] = []  # of each batch
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    @property
    def ran(self) -> Counter[int]:
        """How often each number was in a run."""
        return Counter(number for batch in self.batches for number in batch)

    def release(self) -> None:
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:
        numbers = [int(tokens.ids[0]) for tokens in sequences]
        size = sum(map(len, sequences))
        self.batches.append(numbers)
        self.all_cores.append(all_cores)
        self.lengths.append(size)
        async with self._device:
            await self._free.wait()
            await asyncio.sleep(size * self.seconds_per_token)
        self._fail(numbers, size)
        rows: list[Row | None] = [
            None if number in self.not_finite else {"cls": np.array([number])} for number in numbers
        ]
        return rows[:-1] if self.drops_last_row else rows, Batch(
            feeds={}, outputs=frozenset(), spans={}, tokens=size, slots=size, owners=sequences
        )

    def _fail(self, numbers: Sequence[int], size: int) -> None:
        if size > self.max_tokens:
            raise OutOfMemory("no memory")
        if self.always_fails or self.poisoned & set(numbers):
            raise RuntimeError("the run failed")


class WholeQueue(ABC):
    """An InferenceQueue that answers a request as soon as it has all of its sequences."""

    @abstractmethod
    def answer(self, work: Sequence[Tokens], timeout_seconds: float) -> list[Row]: ...

    def check_admission(self, tokens: int) -> None: ...  # noqa: B027 - refuses none

    def close(self, reason: str) -> None: ...  # noqa: B027 - nothing waits

    async def rate(self) -> float:
        return math.inf

    def begin(
        self, work: Sequence[Tokens], *, sequences: int = 0, tokens: int = 0, part: int = 0, timeout_seconds: float
    ) -> Request:
        request = Request(list(work), arrived=0.0, deadline=timeout_seconds, missing=sequences, reserved=tokens)
        assert not part, "this queue takes requests as a whole"
        request.queue, request.ended = self, asyncio.get_running_loop().create_future()
        self._answer(request)
        return request

    def append(self, request: Request, work: Sequence[Tokens], reserved: int) -> None:
        request.extend(work, reserved)
        self._answer(request)

    def withdraw(self, request: Request) -> None:
        request.ended.cancel()

    def _answer(self, request: Request) -> None:
        if request.missing:
            return
        try:
            request.rows = self.answer(request.work, request.deadline)
            request.end()
        except ServiceError as error:
            request.end(error)


async def submit(queue: InferenceQueue, work: Sequence[Tokens], timeout_seconds: float = 60.0) -> Request:
    return await queue.begin(work, timeout_seconds=timeout_seconds).finish()


def make_queue(
    *, token_budget: int = 8, max_tokens: int = 1000, max_wait_seconds: float = 1000.0, tokens_per_second: float = 100.0
) -> RequestQueue:
    return RequestQueue(
        token_budget=token_budget,
        max_tokens=max_tokens,
        max_wait_seconds=max_wait_seconds,
        tokens_per_second=tokens_per_second,
    )


def adds_up(batcher: Batcher) -> bool:
    counts = batcher.counts
    ended = counts.answered + counts.failed + counts.refused + counts.cancelled + counts.expired
    return counts.received == ended + sum(not request.exclusive for request in batcher._pending)
