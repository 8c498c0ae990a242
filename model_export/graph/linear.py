"""The matrix products of the encoder's linear layers, in fp32 and in int8 by token row. Biases are added by whoever fuses them.

int8: each row of the activations is divided by its own largest magnitude, so an answer does not change with the texts that share
its batch; weights are symmetric int8 with one scale per output channel (Jacob et al. 2018, section 3, with z = 0 for weights).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from model_export.checkpoints.lazy_weight import Array, LazyWeight
from model_export.graph.builder import GraphBuilder, Value

STEPS = 127.0  # int8 magnitudes used; -128 is left out so that the code is symmetric
ZERO_POINT = 128  # activations are stored unsigned: the kernels multiply u8 by s8
ZERO_OF_ACTIVATED = (
    48  # what hardly goes below zero needs few codes there: steps of 1/207 of the largest number, not 1/127
)
LARGEST_CODE = 255
SMALLEST = 1e-30  # divisor of an all-zero row
LOWEST = {"gelu": -0.17, "gelu_tanh": -0.1701, "relu": 0.0}  # what an activation's results lie above


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    gamma: Value  # [width]
    beta: Value
    epsilon: float


class Linear(Protocol):
    """`x` [rows, in] times a weight stored as [out, in], and what the encoder does with the product; each returns [rows, out]."""

    def product(self, g: GraphBuilder, x: Value, weight: LazyWeight) -> Value:
        """x W."""

    def affine(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        """x W + b."""

    def activated(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        """f(x W + b)."""

    def added(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm
    ) -> Value:
        """LayerNorm(residual + x W + b)."""


class CudaLinear:
    """For CUDA, in fp32 or fp16: the operators that ONNX Runtime fused for it."""

    def product(self, g: GraphBuilder, x: Value, weight: LazyWeight) -> Value:
        return g.op("MatMul", x, g.weight("weight", weight.transposed()))

    def affine(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        return g.op("Add", self.product(g, x, weight), g.weight("bias", bias))

    def activated(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        return activate(g, self.product(g, x, weight), bias, activation)

    def added(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm
    ) -> Value:
        inputs = (self.product(g, x, weight), residual, norm.gamma, norm.beta, g.weight("bias", bias))
        return g.contrib("SkipLayerNormalization", *inputs, epsilon=norm.epsilon)


class CpuLinear:
    """For the CPU: the bias inside the product; Gelu and LayerNormalization, which use the vector unit where BiasGelu does less and
    SkipLayerNormalization does not (2.0 ms against 0.3 + 0.3 on 967 x 768 numbers, benchmarks/README.md)."""

    def product(self, g: GraphBuilder, x: Value, weight: LazyWeight) -> Value:
        return g.op("MatMul", x, g.weight("weight", weight.transposed()))

    def affine(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        return g.op("Gemm", x, g.weight("weight", weight.transposed()), g.weight("bias", bias))

    def activated(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        return apply(g, self.affine(g, x, weight, bias), activation)

    def added(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm
    ) -> Value:
        total = g.op("Add", self.affine(g, x, weight, bias), residual)
        return g.op("LayerNormalization", total, norm.gamma, norm.beta, axis=-1, epsilon=norm.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Activations [rows, in] as u8: (codes - zero) * step."""

    codes: Value
    step: Value  # [rows, 1]
    zero: int


class Int8PerTokenLinear:
    """For the CPU. Quantizes each value once, however many products read it."""

    def __init__(self) -> None:
        self._quantized: dict[Value, Codes] = {}
        self._lowest: dict[Value, float] = {}  # values that are known to lie above a negative number

    def product(self, g: GraphBuilder, x: Value, weight: LazyWeight) -> Value:
        if x not in self._quantized:
            self._quantized[x] = self._quantize(g, x)
        return multiply(g, self._quantized[x], weight)

    def affine(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        return g.op("Add", self.product(g, x, weight), g.weight("bias", bias))

    def activated(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        result = activate(g, self.product(g, x, weight), bias, activation)
        self.expect_activated(result, activation)
        return result

    def expect_activated(self, x: Value, activation: str) -> None:
        """`x`, which may become an input, is what `activation` gave."""
        if activation in LOWEST:
            self._lowest[x] = LOWEST[activation]

    def added(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm
    ) -> Value:
        total = g.op("Add", g.op("Add", self.product(g, x, weight), residual), g.weight("bias", bias))
        return g.op("LayerNormalization", total, norm.gamma, norm.beta, axis=-1, epsilon=norm.epsilon)

    def _quantize(self, g: GraphBuilder, x: Value) -> Codes:
        """The largest magnitude from the largest and the smallest number: two readings are cheaper than writing magnitudes and one reading."""
        axis = g.constant(np.array([-1], np.int64))
        highest = g.op("ReduceMax", x, axis, keepdims=1)
        if x in self._lowest:
            return quantize_above(g, x, highest, self._lowest[x])
        return quantize(g, x, highest, g.op("Neg", g.op("ReduceMin", x, axis, keepdims=1)))


def quantize(g: GraphBuilder, x: Value, *magnitudes: Value) -> Codes:
    """`x` [rows, in], which does not go beyond the largest of its row's `magnitudes` [rows, 1]."""
    step = g.op("Mul", g.op("Max", *magnitudes, g.constant(np.float32(SMALLEST))), g.constant(np.float32(1 / STEPS)))
    return _coded(g, x, step, ZERO_POINT)


def quantize_above(g: GraphBuilder, x: Value, highest: Value, lowest: float) -> Codes:
    """`x` [rows, in], which lies between `lowest`, at most zero, and its row's `highest` [rows, 1]."""
    zero = ZERO_OF_ACTIVATED if lowest else 0
    smallest = -lowest / zero if lowest else SMALLEST
    step = g.op(
        "Max", g.op("Mul", highest, g.constant(np.float32(1 / (LARGEST_CODE - zero)))), g.constant(np.float32(smallest))
    )
    return _coded(g, x, step, zero)


def _coded(g: GraphBuilder, x: Value, step: Value, zero: int) -> Codes:
    flat = g.op("Squeeze", step, g.constant(np.array([-1], np.int64)))
    zeros = g.op("Expand", g.constant(np.uint8(zero)), g.op("Shape", flat))
    return Codes(codes=g.op("QuantizeLinear", x, flat, zeros, axis=0), step=step, zero=zero)


def multiply(g: GraphBuilder, x: Codes, weight: LazyWeight) -> Value:
    """x W in int8."""
    scale = g.weight(
        "scale", LazyWeight(weight.shape[:1], lambda: channel_scales(weight.load()), weight.derived("scales"))
    )
    stored = g.weight("weight", _codes(weight), ir.DataType.INT8)
    product = g.contrib(
        "MatMulIntegerToFloat", x.codes, stored, g.constant(np.float32(1)), scale, g.constant(np.uint8(x.zero))
    )
    return g.op("Mul", product, x.step)


def channel_scales(weight: Array) -> Array:
    """[out]: what one int8 step of each output channel of `weight` [out, in] is worth."""
    return np.asarray(np.maximum(np.abs(weight).max(axis=1), np.float32(SMALLEST)) / np.float32(STEPS))


def _codes(weight: LazyWeight) -> LazyWeight:
    def load() -> Array:
        array = weight.load()
        codes = np.rint(array / channel_scales(array)[:, None]).astype(np.int8)
        return np.ascontiguousarray(codes.T)

    return LazyWeight(weight.shape[::-1], load, weight.derived("codes"))


def apply(g: GraphBuilder, x: Value, activation: str) -> Value:
    """GELU in its erf or tanh form (Hendrycks & Gimpel 2016), ReLU or tanh."""
    match activation:
        case "gelu":
            return g.contrib("Gelu", x)
        case "gelu_tanh":
            return g.contrib("FastGelu", x)
        case "tanh":
            return g.op("Tanh", x)
        case _:
            return g.op("Relu", x)


def activate(g: GraphBuilder, x: Value, bias: LazyWeight, activation: str) -> Value:
    """The activation of x + bias."""
    value = g.weight("bias", bias)
    match activation:
        case "gelu":
            return g.contrib("BiasGelu", x, value)
        case "gelu_tanh":
            return g.contrib("FastGelu", x, value)
        case _:
            return apply(g, g.op("Add", x, value), activation)
