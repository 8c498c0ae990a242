"""What the batcher needs of a model runner, and what its clients get."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
