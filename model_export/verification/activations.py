"""The activations in float64, of the reference's forward pass."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
STEP, LARGEST = 1 / 1024, 6.0  # erf(6) is 1 in float64
GRID = np.arange(0.0, LARGEST + 2 * STEP, STEP)
VALUES, SLOPES = np.array([math.erf(x) for x in GRID]), 2.0 / math.sqrt(math.pi) * np.exp(-(GRID**2))
ACTIVATIONS: Mapping[str, Callable[[Doubles], Doubles]] = {
    "gelu": lambda x: np.asarray(0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "silu": lambda x: x * (1.0 / (1.0 + np.exp(-x))),
    "tanh": np.tanh,
    "": lambda x: x,
}


def erf(x: Doubles) -> Doubles:
    """Interpolates math.erf by cubic Hermite splines: 40 times faster than to call it, with errors below 2e-14."""
    parts = np.array_split(x.ravel(), 1 + x.size // 8192)  # that fit in the cache
    return np.concatenate([_erf(part) for part in parts]).reshape(x.shape)


def _erf(x: Doubles) -> Doubles:
    size = np.minimum(np.abs(x), LARGEST)
    at = (size / STEP).astype(np.int64)
    t = size / STEP - at
    rise = VALUES[at + 1] - VALUES[at]
    bend0, bend1 = STEP * SLOPES[at] - rise, rise - STEP * SLOPES[at + 1]
    return np.asarray(np.sign(x) * (VALUES[at] + t * rise + t * (1 - t) * (bend0 * (1 - t) + bend1 * t)))
