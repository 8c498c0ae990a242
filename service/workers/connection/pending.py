"""Requests of an API worker that the engine has not answered."""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from service.errors import ServiceError
from service.workers.codec import RemoteResult

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class PendingRequest:
    """A request for the engine that has not ended."""

    id: int
    started: float  # seconds, as the deadline
    deadline: float
    future: "asyncio.Future[RemoteResult]"
    appended: int = 0  # sequences of a request in parts


def settle(future: "asyncio.Future[T] | None", outcome: T | ServiceError) -> None:
    """Does nothing for None and for a future that is done: the request has been cancelled."""
    if future is None or future.done():
        return
    if isinstance(outcome, ServiceError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
