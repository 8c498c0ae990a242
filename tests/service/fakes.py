"""Fakes around the queue: a clock that never waits, a model runner that answers, fails or hangs on request."""

import asyncio
import inspect
import math
import selectors
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.artifact import Artifact
from packbert.service.errors import OutOfMemory, ServiceError
from packbert.service.scheduling.batcher import TIMES_ALONE, Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Chunk, Request

T = TypeVar("T")
STORY_SECONDS = 300.0  # for a story of some seconds, on a busy machine
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

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        """Waits for the threads without the timeout that Python 3.12 added: here it would pass at once."""
        await super().shutdown_default_executor()


def play(story: Callable[[FakeTime], Coroutine[Any, Any, T]]) -> T:
    """Runs `story` to its end on a loop of its own whose time is fake."""
    time = FakeTime()
    with asyncio.Runner(loop_factory=lambda: FakeLoop(time)) as runner:
        return runner.run(story(time))


def played(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test `story`, played on a FakeTime, which is its first argument."""

    def test(**arguments: Any) -> None:
        play(lambda time: story(time, **arguments))

    return as_test(test, story, given=1)


def on_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test `story`, on an event loop of its own; it fails if it waits for ever."""

    def test(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(story(**arguments), STORY_SECONDS))

    return as_test(test, story, given=0)


def as_test(test: Callable[..., None], story: Callable[..., Any], *, given: int) -> Callable[..., None]:
    """`test`, for which pytest has the arguments of `story` after those that are given."""
    signature = inspect.signature(story)
    vars(test)["__signature__"] = signature.replace(parameters=[*signature.parameters.values()][given:])
    test.__doc__ = story.__doc__
    return test


class Opened(Protocol):
    async def open(self) -> None: ...
    async def close(self) -> None: ...


One = TypeVar("One", bound=Opened)


@asynccontextmanager
async def opened(one: One) -> AsyncIterator[One]:
    """An engine or the models of a service, until it is closed."""
    await one.open()
    try:
        yield one
    finally:
        await one.close()


async def settle(turns: int = 20) -> None:
    """Until every task that can go on has gone on."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object]) -> None:
    """Waits turn by turn, also for what a thread does."""
    while not holds():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


def sequence(number: int, length: int = 4) -> Tokens:
    """Its ids are its number, so that its answer is different from any other."""
    return Tokens(ids=np.full(length, number, np.int32), types=np.zeros(length, np.int32), outputs=frozenset({"cls"}))


@dataclass(eq=False)
class FakeRunner:
    """Answers each sequence with its number; `held` runs wait for `release`."""

    seconds_per_token: float = 0.0
    held: InitVar[bool] = False
    per_core: InitVar[int] = 1  # so many runs at a time, however many are in flight
    poisoned: Set[int] = frozenset()  # the numbers that fail their run
    not_finite: Set[int] = frozenset()
    always_fails: bool = False  # every run raises
    drops_last_row: bool = False  # every run loses its last row
    max_tokens: int = 10**9  # a larger batch is out of memory

    def __post_init__(self, held: bool, per_core: int) -> None:
        self.batches: list[list[int]] = []
        self.lengths: list[int] = []
        self.all_cores: list[bool] = []  # of each batch
        self._device, self._free = asyncio.Semaphore(per_core), asyncio.Event()
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
        rows = [self.answer(tokens) for tokens in sequences]
        return rows[:-1] if self.drops_last_row else rows, Batch(
            feeds={}, outputs=frozenset(), spans={}, tokens=size, slots=size, owners=sequences
        )

    def answer(self, tokens: Tokens) -> Row | None:
        number = int(tokens.ids[0])
        return None if number in self.not_finite else {"cls": np.array([number])}

    def _fail(self, numbers: Sequence[int], size: int) -> None:
        if size > self.max_tokens:
            raise OutOfMemory("no memory")
        if self.always_fails or self.poisoned & set(numbers):
            raise RuntimeError("the run failed")


class InstantQueue(ABC):
    """Takes the place of a Batcher; answers each chunk when it is sent."""

    tokens_per_second = math.inf

    @abstractmethod
    def answer(self, chunk: Chunk[Any]) -> Sequence[Row]:
        """May raise what ends the request."""

    def close(self, reason: str) -> None: ...  # noqa: B027 - nothing waits

    def leave(self, request: Request, *, answered: bool = False) -> None: ...  # noqa: B027 - nothing is counted

    def admit(self, tokens: int, inputs: int = 1, *, timeout_seconds: float, max_seconds: float = 0.0) -> Request:
        takes = TIMES_ALONE * tokens / self.tokens_per_second
        deadline = max(timeout_seconds, min(max_seconds, takes))
        return Request(arrived=0.0, deadline=deadline, tokens=tokens, inputs=inputs)

    def send(self, request: Request, chunk: Chunk[Any]) -> None:
        chunk.done = asyncio.get_running_loop().create_future()
        request.add(chunk)
        if not chunk.missing:
            chunk.done.set_result(None)
            return
        request.dispatch(2**62, always_one=True)
        try:
            for index, row in enumerate(self.answer(chunk)):
                request.put(chunk, index, row)
        except ServiceError as error:
            request.fail(error)


class Answer(NamedTuple):
    request: Request
    rows: list[Row]


async def submit(
    batcher: Batcher, work: Sequence[Tokens], *, step: int = 10**9, timeout_seconds: float = 60.0
) -> Answer:
    """The answer to a request of chunks of `step` sequences, at most two in the queue. Raises what has ended it.

    By default it is one chunk.
    """
    lengths, chunks = [len(one.ids) for one in work], list[Chunk[Tokens]]()
    request = batcher.admit(sum(lengths), len(work), timeout_seconds=timeout_seconds)
    answered = False
    try:
        for first in range(0, len(work), step):
            chunks.append(Chunk(work[first : first + step], left=sum(lengths[first + step :])))
            batcher.send(request, chunks[-1])
            if len(chunks) > 1:
                await chunks[-2].done
        await chunks[-1].done
        if request.error is not None:
            raise request.error
        answered = True
    finally:
        batcher.leave(request, answered=answered)
    return Answer(request, [row for chunk in chunks for row in chunk.rows])


make_queue = partial(RequestQueue, token_budget=8, max_tokens=1000, max_wait_seconds=1000.0, tokens_per_second=100.0)


def adds_up(batcher: Batcher) -> bool:
    counts = batcher.counts
    ended = counts.answered + counts.failed + counts.refused + counts.cancelled + counts.expired
    return counts.received == ended + sum(not request.exclusive for request in batcher._pending)


class OnlyModel:
    """Stands in for the models of a service and for the only one of them."""

    refuses, shares, can_swap = False, (), False
    tracing: Any = None
    device: Any = SimpleNamespace(tracing=None)

    @property
    def models(self) -> Self:
        return self

    @property
    def default(self) -> Self:
        return self

    @property
    def group(self) -> dict[str, Self]:
        return {self.name: self}

    @property
    def name(self) -> str:
        artifact: Artifact = self.artifact  # type: ignore[attr-defined]
        return artifact.manifest.name
