"""Where the numbers of each channel lie: what int8 products count from.

Trained BERTs have channels that lie far off zero in every token, and these alone would decide how coarse a token's codes are. So a norm
gives out what it gave less each channel's centre. Whoever reads it is a product or a sum, so the centre goes into their biases at
export, and costs nothing in a run (the shift of Wei et al. 2023, "Outlier Suppression+").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_export.checkpoints.lazy_weight import Dense, LazyWeight, at

Points = Callable[[], Sequence[NDArray[np.float64]]]  # by place, each [hidden]


class Centres(Protocol):
    """Values have a place: 0 what the embeddings give out, then two for each layer, after its attention and after its feed-forward block."""

    def norm(self, bias: LazyWeight, place: int) -> LazyWeight:
        """The bias of the norm, or of the projection, that gives out the values of `place`."""

    def dense(self, dense: Dense, place: int) -> Dense:
        """A layer that reads the values of `place`."""

    def residual(self, bias: LazyWeight, place: int) -> LazyWeight:
        """The bias of a sum with the values of `place`."""


class NoShift:
    """For fp32 and fp16, whose steps are relative to each number."""

    def __init__(self, points: Points, last: int) -> None:
        pass

    def norm(self, bias: LazyWeight, place: int) -> LazyWeight:  # noqa: ARG002
        return bias

    def dense(self, dense: Dense, place: int) -> Dense:  # noqa: ARG002
        return dense

    def residual(self, bias: LazyWeight, place: int) -> LazyWeight:  # noqa: ARG002
        return bias


@dataclass(frozen=True, slots=True)
class ChannelShift:
    """For int8. The values of the `last` place are the answer itself, and stay as they are."""

    points: Points
    last: int

    def norm(self, bias: LazyWeight, place: int) -> LazyWeight:
        return bias if place == self.last else bias.plus(self._centre(bias.shape, place, -1))

    def dense(self, dense: Dense, place: int) -> Dense:
        weight, bias = dense
        return weight, at(weight, self._centre(weight.shape[1:], place, 1), bias)

    def residual(self, bias: LazyWeight, place: int) -> LazyWeight:
        return bias.plus(self._centre(bias.shape, place, 1))

    def _centre(self, shape: tuple[int, ...], place: int, sign: int) -> LazyWeight:
        return LazyWeight(shape, lambda: (sign * self.points()[place]).astype(np.float32))
