"""Between a caller and a run: what a run is asked, what a caller is promised, what it gets."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from model_export.artifact.batch import Batch, Row, Tokens


class RunBatch(Protocol):
    """A row per sequence, None where the answer was not finite. `whole`: nothing else runs or waits, so all cores are for this batch."""

    def __call__(
        self, sequences: Sequence[Tokens], *, all_cores: bool
    ) -> Awaitable[tuple[Sequence[Row | None], Batch]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    rows: list[Row]
    queue_seconds: float
    forward_seconds: float  # of the runs this request had a part in


@dataclass(slots=True, eq=False)
class PendingRequest:
    future: asyncio.Future[None]
    forward_seconds: float = 0.0
    counted_until: float = float("-inf")  # runs side by side count once

    def count(self, began: float, ended: float) -> None:
        """One more run with a part of this request, in the order in which they end."""
        self.forward_seconds += ended - max(began, self.counted_until)
        self.counted_until = ended
