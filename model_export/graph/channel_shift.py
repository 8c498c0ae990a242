"""Channel-wise shifting and balancing (Wei et al. 2023, "Outlier Suppression+") and splitting (Zhao et al. 2019,
"Outlier Channel Splitting") for int8: see docs/design/precision.md."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..lazy_weight import Array, Dense, LazyWeight, affine_at, zeros
from .builder import GraphBuilder, Value
from .linear import channel_scales

SPLIT_SHARE, SPLIT_STEP = 1 / 96, 16  # of the inner channels; the number of those split is a multiple of the step

ByActivation = Callable[[], Sequence[NDArray[np.float64]]]  # by activation index, each [hidden]


class NoShift:
    """For fp32, fp16 and bf16, whose precision is relative to each number.

    Activations have an index: 0 after the embeddings, then two per layer, after attention and after feed-forward.
    """

    def balanced(self, g: GraphBuilder, x: Value, index: int, hidden: int) -> Value:  # noqa: ARG002
        """Activation `index`, `x` [rows, hidden], as the products read it whose weights `compensate_dense` gives."""
        return x

    def lower(self, bias: LazyWeight, index: int) -> LazyWeight:  # noqa: ARG002
        """The bias [hidden] of the norm or projection that produces activation `index`."""
        return bias

    def compensate_dense(self, dense: Dense, index: int) -> Dense:  # noqa: ARG002
        """A layer that reads activation `index`."""
        return dense

    def split_results(self, dense: Dense, reader: LazyWeight) -> Dense:  # noqa: ARG002
        """A layer of the inner channels, of which `reader` [hidden, inner] is the only reader."""
        return dense

    def split_inputs(self, reader: LazyWeight) -> LazyWeight:
        """The weight [hidden, inner] that reads the inner channels which `split_results` gives."""
        return reader

    def compensate_sum(self, bias: LazyWeight, index: int) -> LazyWeight:  # noqa: ARG002
        """The bias [hidden] of a sum with activation `index`."""
        return bias

    def taken(self, index: int, hidden: int) -> LazyWeight:  # noqa: ARG002
        """What was taken from each channel of activation `index`, [hidden]."""
        return zeros((hidden,))


@dataclass(frozen=True, slots=True)
class ChannelShift(NoShift):
    """For int8."""

    offsets: ByActivation
    balances: ByActivation
    last: int  # the activation that is the encoder's output, which is not shifted

    def balanced(self, g: GraphBuilder, x: Value, index: int, hidden: int) -> Value:
        factors = LazyWeight((hidden,), lambda: (1 / self.balances()[index]).astype(np.float32), f"balance {index}")
        return g.op("Mul", x, g.weight("balance", factors))

    def lower(self, bias: LazyWeight, index: int) -> LazyWeight:
        return bias if index == self.last else bias.plus(self._offset(bias.shape, index, -1))

    def compensate_dense(self, dense: Dense, index: int) -> Dense:
        weight, bias = dense
        balanced = weight.derived(
            "balanced", weight.shape, lambda array: array * self.balances()[index].astype(np.float32)
        )
        return balanced, affine_at(weight, self._offset(weight.shape[1:], index, 1), bias)

    def split_results(self, dense: Dense, reader: LazyWeight) -> Dense:
        operation, count = f"split for {reader.cache_key}", reader.shape[1] + split_count(reader.shape[1])
        weight, bias = (
            one.derived(operation, (count, *one.shape[1:]), lambda array: array[split_channels(reader.load())])
            for one in dense
        )
        return weight, bias

    def split_inputs(self, reader: LazyWeight) -> LazyWeight:
        hidden, inner = reader.shape

        def split(weight: Array) -> Array:
            channels = split_channels(weight)
            found = np.asarray(weight[:, channels] / np.bincount(channels)[channels], np.float32)
            apart = channel_scales(found)[:, None] / 4  # the halves' codes are rounded to different sides
            found[:, channels[inner:]] -= apart
            found[:, inner:] += apart
            return found

        return reader.derived("split", (hidden, inner + split_count(inner)), split)

    def compensate_sum(self, bias: LazyWeight, index: int) -> LazyWeight:
        return bias.plus(self._offset(bias.shape, index, 1))

    def taken(self, index: int, hidden: int) -> LazyWeight:
        return NoShift.taken(self, index, hidden) if index == self.last else self._offset((hidden,), index, 1)

    def _offset(self, shape: tuple[int, ...], index: int, sign: int) -> LazyWeight:
        return LazyWeight(shape, lambda: (sign * self.offsets()[index]).astype(np.float32))


def split_channels(weight: Array) -> NDArray[np.intp]:
    """The inner channels of `weight` [hidden, inner], then those with the largest weights once more."""
    inner = weight.shape[1]
    largest = np.argsort(-np.abs(weight).max(axis=0), kind="stable")
    return np.concatenate([np.arange(inner), largest[: split_count(inner)]])


def split_count(inner: int) -> int:
    """How many of `inner` channels are split."""
    return min(inner, math.ceil(inner * SPLIT_SHARE / SPLIT_STEP) * SPLIT_STEP)


def taken_offsets(shift: NoShift, layers: int, hidden: int) -> LazyWeight:
    """What was taken from the hidden states after the embeddings and each layer, [layers + 1, hidden]."""
    taken = [shift.taken(2 * layer, hidden) for layer in range(layers + 1)]
    return LazyWeight((layers + 1, hidden), lambda: np.stack([one.load() for one in taken]))
