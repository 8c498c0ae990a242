"""Learning-rate factor and row length by the number of tokens seen: warm-up, constant, decay. Knows no clock."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Numbers of tokens, except `decay_share`. The total may change between runs until the decay has begun."""

    total: int
    warm_up: int
    decay_share: float
    short_row: int
    long_row: int

    @property
    def decay_begins(self) -> int:
        return int(self.total * (1 - self.decay_share))

    def factor(self, tokens: int) -> float:
        """The learning rate divided by its constant value; in the decay 1 - square root of the progress."""
        if tokens >= self.decay_begins:
            progress = min(1.0, (tokens - self.decay_begins) / (self.total - self.decay_begins))
            return 1.0 - math.sqrt(progress)
        return min(1.0, (tokens + 1) / self.warm_up)

    def row_length(self, tokens: int, *, step: int) -> int:
        """Short rows until the decay, then short and long ones in turns."""
        return self.long_row if self.has_long_rows(tokens) and step % 2 else self.short_row

    def has_long_rows(self, tokens: int) -> bool:
        return tokens >= self.decay_begins
