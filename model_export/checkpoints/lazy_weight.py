"""A weight: what it is shaped like, and how to get it. Nothing is in memory until it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LazyWeight:
    """A float32 array that is made when asked for."""

    shape: tuple[int, ...]
    load: Callable[[], Array]
    origin: str = ""  # equal origins mean equal content, which a graph stores once; "" is never shared

    def transposed(self) -> "LazyWeight":
        return LazyWeight(self.shape[::-1], lambda: np.ascontiguousarray(self.load().T), self.derived("transposed"))

    def rows(self, start: int, stop: int) -> "LazyWeight":
        return LazyWeight((stop - start, *self.shape[1:]), lambda: np.ascontiguousarray(self.load()[start:stop]))

    def plus(self, other: "LazyWeight") -> "LazyWeight":
        """The sum, with NumPy's broadcasting; keeps this weight's shape."""
        return LazyWeight(self.shape, lambda: self.load() + other.load())

    def derived(self, how: str) -> str:
        """The origin of what is made from this weight in the way `how`."""
        return f"{self.origin} {how}" if self.origin else ""


Dense = tuple[LazyWeight, LazyWeight]  # weight [out, in] and bias [out]


def at(weight: LazyWeight, point: LazyWeight, bias: LazyWeight) -> LazyWeight:
    """What `weight` [out, in] and `bias` [out] make of the `point` [in]."""
    known = all(one.origin for one in (weight, point, bias))
    origin = f"{bias.origin} and {weight.origin} at {point.origin}" if known else ""
    return LazyWeight(
        bias.shape, lambda: (bias.load() + weight.load().astype(np.float64) @ point.load()).astype(np.float32), origin
    )
