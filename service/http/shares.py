"""A share of a model's requests for another model, which answers them, or repeats them for a comparison."""

import asyncio
import base64
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packbert.service.errors import DeadlineExceeded, Overloaded, ServiceError, TooLarge
from packbert.service.http.dialects.spec import TaskSpec
from packbert.service.models import ServedModel, Unchosen
from packbert.service.tasks.base import TaskResult
from packbert.service.tasks.embed import unit_length

BY_HEADS = ("root", "infer")  # tasks that the model's heads decide: shared with a model of the same heads only
PATIENCE_SECONDS = 0.05  # in which a repeated request has to begin: the other processes have work where it does not
DROPPED = (Overloaded, DeadlineExceeded, TooLarge)  # how the queue ends it then
FIRST_BY = ("token_str", "label", "answer", "index")  # what a candidate, a label, an answer, a ranked text is known by
log = logging.getLogger("service")


@dataclass(frozen=True, slots=True)
class SharedRequest:
    """A request for a model that shares its requests with others."""

    spec: TaskSpec
    model: ServedModel
    unchosen: Unchosen
    request: Any
    answer: Callable[..., Awaitable[TaskResult]]  # (ServedModel, Unchosen, request, *, timeout_seconds)

    async def run(self, timeout_seconds: float) -> TaskResult:
        """The answer of the model that is drawn; what another one than `model` refuses or fails, `model` answers."""
        drawn, started = self._draw(), time.perf_counter()
        if drawn is not None:
            try:
                result = await self.answer(drawn, self.unchosen, self.request, timeout_seconds=timeout_seconds)
            except DeadlineExceeded:
                raise
            except ServiceError:
                timeout_seconds -= time.perf_counter() - started
            else:
                drawn.metrics.shared(drawn.name, "answered")
                return result
        result = await self.answer(self.model, self.unchosen, self.request, timeout_seconds=timeout_seconds)
        if drawn is not None:
            drawn.metrics.shared(drawn.name, "left")
            return result
        for other, share in self.model.shares:
            if random.random() < share.shadow and self._may_have(other):
                task = asyncio.current_task()  # it ends when the response is sent
                assert task is not None
                task.add_done_callback(partial(self._begin_repeat, other, result))
        return result

    def _draw(self) -> ServedModel | None:
        """The model that answers in place of `model`; None: none does."""
        number = random.random()
        for other, share in self.model.shares:
            number -= share.weight
            if number < 0:
                return other if self._may_have(other) else None
        return None

    def _may_have(self, other: ServedModel) -> bool:
        mine, its = self.model.artifact.manifest.heads, other.artifact.manifest.heads
        return self.spec.name not in BY_HEADS or set(mine) == set(its)

    def _begin_repeat(self, other: ServedModel, first: TaskResult, _: "asyncio.Task[Any]") -> None:
        """Only where this process answers no request, and `other` repeats none."""
        repeats = other.repeating is not None and not other.repeating.done()
        if repeats or any(one.current.users for one in other.group.values()):
            other.metrics.shared(other.name, "dropped")
        else:
            other.repeating = asyncio.create_task(self._repeat(other, first))

    async def _repeat(self, other: ServedModel, first: TaskResult) -> None:
        metrics, keeps = other.metrics, Unchosen(keeps_deadline=True)
        try:
            second = await self.answer(other, keeps, self.request, timeout_seconds=PATIENCE_SECONDS)
            cosines, agreements = compare(first.value, second.value)
        except DROPPED:
            metrics.shared(other.name, "dropped")
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("a request could not be repeated on %s", other.name)
            metrics.shared(other.name, "failed")
        else:
            metrics.shared(other.name, "compared")
            seconds = {"model": sum(first.stage_seconds[:3]), "shadow": sum(second.stage_seconds[:3])}
            metrics.compared(other.name, cosines, agreements, seconds)


def compare(first: Any, second: Any) -> tuple[list[float], list[bool]]:
    """Of two answers to a request the cosines of the vectors that have one shape, and whether the first candidates or
    labels agree."""
    cosines, agreements = list[float](), list[bool]()
    for one, other in zip(_find_comparable(first), _find_comparable(second), strict=False):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            agreements.append(type(one) is type(other) and one == other)
        elif one.shape == other.shape:
            cosines += (unit_length(one) * unit_length(other)).sum(axis=-1).reshape(-1).tolist()
    return cosines, agreements


def _find_comparable(value: Any) -> Iterator[Any]:
    """The arrays of an answer, and what the first of each list of candidates or labels is known by."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        if isinstance(encoded := value.get("embedding"), str):
            yield np.frombuffer(base64.b64decode(encoded), "<f4")
        elif "embedding" not in value and (known := [name for name in FIRST_BY if name in value]):
            yield value[known[0]]
        else:
            for one in value.values():
                yield from _find_comparable(one)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        is_ranked = len(value) and isinstance(value[0], Mapping) and "score" in value[0]
        for one in value[:1] if is_ranked else value:
            yield from _find_comparable(one)
