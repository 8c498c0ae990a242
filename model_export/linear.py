"""The matrix products of the encoder's linear layers, in fp32 and in int8 by token row. Biases are added by whoever fuses them.

int8: each row of the activations is divided by its own largest magnitude, so an answer does not change with the texts that share
its batch; weights are symmetric int8 with one scale per output channel (Jacob et al. 2018, section 3, with z = 0 for weights).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from model_export.graph import Graph, Value
from model_export.weights import Array, Weight

STEPS = 127.0  # int8 magnitudes used; -128 is left out so that the code is symmetric
ZERO_POINT = 128  # activations are stored unsigned: the kernels multiply u8 by s8
SMALLEST = 1e-30  # divisor of an all-zero row


class Linear(Protocol):
    """`x` [rows, in] times a weight stored as [out, in]; returns [rows, out]."""

    def __call__(self, g: Graph, x: Value, weight: Weight) -> Value: ...


class Plain:
    """In the precision of the graph: fp32 or fp16."""

    def __call__(self, g: Graph, x: Value, weight: Weight) -> Value:
        return g.op("MatMul", x, g.weight("weight", weight.transposed()))


class Int8ByRow:
    """Quantizes each value once, however many products read it."""

    def __init__(self) -> None:
        self._quantized: dict[Value, tuple[Value, Value]] = {}

    def __call__(self, g: Graph, x: Value, weight: Weight) -> Value:
        if x not in self._quantized:
            self._quantized[x] = self._quantize(g, x)
        codes, largest = self._quantized[x]
        scale = Weight(weight.shape[:1], lambda: channel_scales(weight.load()), weight.derived("scales"))
        stored = g.weight("weight", _codes(weight), ir.DataType.INT8)
        product = g.contrib(
            "MatMulIntegerToFloat", codes, stored, g.constant(np.float32(1 / STEPS)), g.weight("scale", scale), g.constant(np.uint8(ZERO_POINT))
        )
        return g.op("Mul", product, largest)

    def _quantize(self, g: Graph, x: Value) -> tuple[Value, Value]:
        axis = g.constant(np.array([-1], np.int64))
        largest = g.op("ReduceMax", g.op("Abs", x), axis, keepdims=1)
        largest = g.op("Max", largest, g.constant(np.float32(SMALLEST)))
        unit = g.op("Div", x, largest)
        return g.op("QuantizeLinear", unit, g.constant(np.float32(1 / STEPS)), g.constant(np.uint8(ZERO_POINT))), largest


def channel_scales(weight: Array) -> Array:
    """[out]: what one int8 step of each output channel of `weight` [out, in] is worth."""
    return np.asarray(np.maximum(np.abs(weight).max(axis=1), np.float32(SMALLEST)) / np.float32(STEPS))


def _codes(weight: Weight) -> Weight:
    def load() -> Array:
        array = weight.load()
        codes = np.rint(array / channel_scales(array)[:, None]).astype(np.int8)
        return np.ascontiguousarray(codes.T)

    return Weight(weight.shape[::-1], load, weight.derived("codes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What `--precision` chooses."""

    linear: type[Plain] | type[Int8ByRow]
    computes: str  # dtype of the other weights and activations
    devices: tuple[str, ...]  # that have the kernels


PRECISIONS = {
    "fp32": Precision(linear=Plain, computes="float32", devices=("cpu", "cuda")),
    "fp16": Precision(linear=Plain, computes="float16", devices=("cuda",)),
    "int8": Precision(linear=Int8ByRow, computes="float32", devices=("cpu",)),
}
