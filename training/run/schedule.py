"""Learning-rate factor and row length by the number of tokens seen: warm-up, constant, decay. Knows no clock.

A run from random weights decays as 1 - square root after a constant part. A run that continues finished weights decays
linearly from the end of the warm-up.
"""

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
    continues: bool = False  # a short run from finished weights: no constant part
    long_every: int = 2  # in the decay, one step in so many has long rows

    @property
    def decay_begins(self) -> int:
        return int(self.total * (1 - self.decay_share))

    def factor(self, tokens: int) -> float:
        """The learning rate divided by its highest value."""
        if self.continues:
            left = (self.total - tokens) / (self.total - self.warm_up)
            return min((tokens + 1) / self.warm_up, max(0.0, left))
        if tokens >= self.decay_begins:
            progress = min(1.0, (tokens - self.decay_begins) / (self.total - self.decay_begins))
            return 1.0 - math.sqrt(progress)
        return min(1.0, (tokens + 1) / self.warm_up)

    def row_length(self, tokens: int, *, step: int) -> int:
        """Short rows until the decay; then the rows of one step in `long_every` are long."""
        return self.long_row if self.has_long_rows(tokens) and step % self.long_every == 1 else self.short_row

    def has_long_rows(self, tokens: int) -> bool:
        return tokens >= self.decay_begins
