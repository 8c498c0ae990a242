"""Tokens seen in, learning-rate factor and row length out: warm-up, level, decay. Knows no clock."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The total may change from one run to the next, as long as the decay has not begun."""

    total: int
    warm_up: int
    decay_share: float
    short_row: int
    long_row: int

    @property
    def decay_begins(self) -> int:
        return int(self.total * (1 - self.decay_share))

    def factor(self, tokens: int) -> float:
        if tokens >= self.decay_begins:
            gone = min(1.0, (tokens - self.decay_begins) / (self.total - self.decay_begins))
            return 1.0 - math.sqrt(gone)
        return min(1.0, (tokens + 1) / self.warm_up)

    def row_length(self, tokens: int, *, step: int) -> int:
        """Short rows until the decay, then short and long ones in turn."""
        return self.long_row if self.has_long_rows(tokens) and step % 2 else self.short_row

    def has_long_rows(self, tokens: int) -> bool:
        return tokens >= self.decay_begins
