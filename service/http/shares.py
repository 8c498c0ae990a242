"""A share of a model's requests for another model, which answers them, or repeats them for a comparison."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DeadlineExceeded, Overloaded, ServiceError, TooLarge
from ..models import ServedModel
from ..tasks.embed import VECTORS_AT_ONCE, unit_length
from ..tasks.flow import TaskResult
from ..tasks.inputs import Body
from ..turns import DEADLINE, Deadline, in_turns
from .dialects.spec import TaskSpec

BY_HEADS = ("root", "infer")  # tasks that the model's heads decide: shared with a model of the same heads only
PATIENCE_SECONDS = 0.05  # in which a repeated request has to begin: if it does not, other processes have work
DROPPED = (Overloaded, DeadlineExceeded, TooLarge)  # how the queue ends it then
FIRST_BY = ("token_str", "label", "answer", "index")  # what a candidate, a label, an answer, a choice is known by
NUMBERS_AT_ONCE = 2**16  # of vectors that are compared: 1 ms
log = logging.getLogger("service")


async def answer_shared(spec: TaskSpec, model: ServedModel, request: Body) -> TaskResult:
    """The answer of the model that is drawn; what another model refuses or fails, `model` answers."""
    answering, repeating = _draw(spec, model)
    if answering is not None:
        try:
            result = await spec.answer(answering, request)
            answering.metrics.shared(answering.name, "answered")
            return result
        except DeadlineExceeded:
            raise
        except ServiceError:
            pass  # `model` answers
        except Exception:
            log.exception("a request could not be answered by %s", answering.name)
    result = await spec.answer(model, request)
    if answering is not None:
        answering.metrics.shared(answering.name, "left")
    if repeating is not None and (task := asyncio.current_task()):  # which ends when the response is sent
        task.add_done_callback(lambda _: _begin_repeat(spec, repeating, request, result))
    return result


def _draw(spec: TaskSpec, model: ServedModel) -> tuple[ServedModel | None, ServedModel | None]:
    """The other model that answers this request, and the model that repeats it: not both."""
    number = random.random()
    for other, share in model.shares:
        number -= share.weight + share.shadow
        if number < 0:
            mine, its = model.artifact.manifest.heads, other.artifact.manifest.heads
            if spec.name in BY_HEADS and set(mine) != set(its):
                break
            return (None, other) if number < -share.weight else (other, None)
    return None, None


def _begin_repeat(spec: TaskSpec, other: ServedModel, request: Body, first: TaskResult) -> None:
    """Repeats the request if this process answers no request and repeats none."""
    if any(each.current.users.count for each in other.group.values()):
        other.metrics.shared(other.name, "dropped")
    else:
        other.repeating = asyncio.create_task(_repeat(spec, other, request, first))


async def _repeat(spec: TaskSpec, other: ServedModel, request: Body, first: TaskResult) -> None:
    metrics = other.metrics
    DEADLINE.set(Deadline(PATIENCE_SECONDS))
    try:
        second = await spec.answer(other, request)
        async for cosines, agreements in compare(first, second):
            metrics.agreed(other.name, cosines, agreements)
    except DROPPED:
        metrics.shared(other.name, "dropped")
    except Exception as error:
        metrics.shared(other.name, "failed")
        if not isinstance(error, ServiceError):
            log.exception("a request could not be repeated on %s", other.name)
    else:
        metrics.compared(other.name, [sum(result.stage_seconds[:3]) for result in (first, second)])


async def compare(first: TaskResult, second: TaskResult) -> AsyncIterator[tuple[list[float], list[bool]]]:
    """The cosines of the vectors of two answers that have the same size, and whether their first candidates or labels
    agree: of some at a time, in turns with the requests."""
    async for left, right in in_turns(_find_pairs(*map(_compared, (first, second)))):
        if isinstance(left, np.ndarray):
            yield (unit_length(left) * unit_length(right)).sum(axis=-1).tolist(), []
        else:
            yield [], [left == right]


def _find_pairs(first: Iterator[Any], second: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows of two arrays of the same shape, or what two first candidates are known by."""
    for left, right in zip(first, second, strict=False):
        if not isinstance(left, np.ndarray):
            yield left, right
        elif left.shape == np.shape(right):
            width = left.shape[-1]
            rows, others, some = left.reshape(-1, width), right.reshape(-1, width), 1 + NUMBERS_AT_ONCE // width
            for start in range(0, len(rows), step := min(some, VECTORS_AT_ONCE)):
                yield rows[start : start + step], others[start : start + step]


def _compared(result: TaskResult) -> Iterator[Any]:
    return _find_comparable(result.value) if result.compared is None else iter(result.compared)


def _find_comparable(value: Any) -> Iterator[Any]:
    """The arrays of an answer, and what the first of each list of candidates or labels is known by."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping) and "score" in value:
        yield next((value[name] for name in FIRST_BY if name in value), None)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _find_comparable(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        is_ranked = len(value) and isinstance(value[0], Mapping) and "score" in value[0]
        for item in value[:1] if is_ranked else value:
            yield from _find_comparable(item)
