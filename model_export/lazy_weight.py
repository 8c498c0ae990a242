"""A weight that is loaded when it is needed, so that a checkpoint is never in memory as a whole."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ExportError

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LazyWeight:
    """A float32 array of a known shape, computed by `load`."""

    shape: tuple[int, ...]
    load: Callable[[], Array]
    cache_key: str = ""  # weights of equal keys have equal content, and a graph stores them once; "" is never shared

    def derived(self, operation: str, shape: tuple[int, ...], change: Callable[[Array], Array]) -> "LazyWeight":
        """The result, of this shape, of `change` on this weight; `operation` names it in the cache key."""
        key = f"{self.cache_key} {operation}" if self.cache_key else ""
        return LazyWeight(shape, lambda: change(self.load()), key)

    def transposed(self) -> "LazyWeight":
        return self.derived("transposed", self.shape[::-1], lambda array: np.ascontiguousarray(array.T))

    def rows(self, start: int, stop: int) -> "LazyWeight":
        shape = (stop - start, *self.shape[1:])
        return self.derived(f"{start} to {stop}", shape, lambda array: np.ascontiguousarray(array[start:stop]))

    def plus(self, other: "LazyWeight") -> "LazyWeight":
        """The sum, broadcast to this weight's shape."""
        return LazyWeight(self.shape, lambda: self.load() + other.load())


def zeros(shape: tuple[int, ...]) -> LazyWeight:
    return LazyWeight(shape, lambda: np.zeros(shape, np.float32))


def stored(name: str, shape: tuple[int, ...], read: Callable[[], Array]) -> LazyWeight:
    """The weight called `name` of a file. Its `load` raises ExportError if it holds NaN or infinity."""

    def load() -> Array:
        if np.isfinite(array := read()).all():
            return array
        raise ExportError(f"weight {name!r} holds NaN or infinite values: the checkpoint is damaged")

    return LazyWeight(shape, load)


Dense = tuple[LazyWeight, LazyWeight]  # weight [out, in] and bias [out]


def affine_at(weight: LazyWeight, point: LazyWeight, bias: LazyWeight) -> LazyWeight:
    """`weight` [out, in] @ `point` [in] + `bias` [out], computed in float64; [out]."""
    shared = all(one.cache_key for one in (weight, point, bias))
    key = f"{bias.cache_key} and {weight.cache_key} at {point.cache_key}" if shared else ""

    def load() -> Array:
        return (bias.load() + weight.load().astype(np.float64) @ point.load()).astype(np.float32)

    return LazyWeight(bias.shape, load, key)
