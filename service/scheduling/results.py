"""What the batcher needs of a model runner, and what its clients get."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from model_export.artifact.batch import Batch, Row, Tokens


class RunBatch(Protocol):
    """A row per sequence, None where the answer is not finite. `all_cores`: no other batch is running or queued."""

    def __call__(
        self, sequences: Sequence[Tokens], *, all_cores: bool
    ) -> Awaitable[tuple[Sequence[Row | None], Batch]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    rows: list[Row]  # one per sequence, in the order of the request
    queue_seconds: float
    forward_seconds: float  # of the runs that this request took part in


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInParts:
    """A request that was admitted before its sequences were known: they run while later ones are still made.

    `append` sequences until the last and `finish`, or `withdraw`.
    """

    ended: "asyncio.Future[Any]"  # done as soon as the request has ended, also where it failed before `finish`
    append: Callable[[Sequence[Tokens], int], None]  # and the expected tokens of those after them; 0: they are the last
    finish: Callable[[], Awaitable[InferenceResult]]  # raises what `submit` raises
    withdraw: Callable[[], None]
