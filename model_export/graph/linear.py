"""The encoder's linear layers for CUDA, for the CPU in fp32, and for the CPU in int8 with a scale per token.

int8: each row of the activations is divided by its own largest magnitude, so an answer does not change with the rest
of the batch; weights are symmetric int8 with a scale per output channel (Jacob et al. 2018, section 3, with z = 0 for
weights).
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..checkpoint import NamedWeights
from ..lazy_weight import Array, LazyWeight
from .builder import CONTRIB, GraphBuilder, Value

QMAX = 127.0  # largest int8 magnitude; -128 is unused so that the codes are symmetric
# x86 without VNNI adds the products of two neighbouring codes in 16 bits: 255 times 128 fits. Less than 128, so that
# two codes rounded up are not 129
PAIR_MAX = 127.99
ZERO_POINT = 128  # activations are stored unsigned: the kernels multiply u8 by s8
ACTIVATED_ZERO_POINT = 32  # GELU hardly goes below zero: 32 codes there make a scale of 1/223 of the maximum, not 1/127
LARGEST_CODE = 255
MIN_MAGNITUDE = 1e-30  # prevents a division by zero in an all-zero row
ACTIVATION_MINIMUM = {"gelu": -0.17, "gelu_tanh": -0.1701, "relu": 0.0}  # lower bounds of the results
OPERATORS = {  # activation -> operator and its domain; GELU in its erf or tanh form (Hendrycks & Gimpel 2016)
    "gelu": ("Gelu", CONTRIB),
    "gelu_tanh": ("FastGelu", CONTRIB),
    "tanh": ("Tanh", ""),
    "sigmoid": ("Sigmoid", ""),
    "relu": ("Relu", ""),
}
OPERATORS_WITH_BIAS = {"gelu": "BiasGelu", "gelu_tanh": "FastGelu"}  # of the domain CONTRIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The weights of a LayerNorm (Ba et al. 2016)."""

    gamma: Value  # [width]
    beta: Value  # [width]
    epsilon: float

    def of(self, g: GraphBuilder, x: Value) -> Value:
        """LayerNorm(x)."""
        return g.op("LayerNormalization", x, self.gamma, self.beta, axis=-1, epsilon=self.epsilon)


def normalized(g: GraphBuilder, parts: NamedWeights, part: str, x: Value, width: int, *, layer: int = 0) -> Value:
    """LayerNorm(x) of `x` [..., width] by the stored norm `part`."""
    weight, bias = parts.norm(part, width, layer=layer)
    gamma, beta = g.weight("norm.weight", weight), g.weight("norm.bias", bias)
    return Norm(gamma=gamma, beta=beta, epsilon=parts.architecture.norm_epsilon).of(g, x)


class Linear:
    """Products in the graph `g`: of `x` [rows, in] with a weight stored as [out, in] and a bias [out]; [rows, out]."""

    def __init__(self, g: GraphBuilder) -> None:
        self.g = g

    def product(self, x: Value, weight: LazyWeight) -> Value:
        """x W."""
        return self.g.op("MatMul", x, self.g.weight("weight", weight.transposed()))

    def affine(self, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        """x W + b."""
        return self.g.op("Add", self.product(x, weight), self.g.weight("bias", bias))

    def linear_activation(self, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        """f(x W + b)."""
        return activate(self.g, self.affine(x, weight, bias), activation)

    def add_and_norm(self, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm) -> Value:
        """LayerNorm(residual + x W + b)."""
        return norm.of(self.g, self.g.op("Add", self.affine(x, weight, bias), residual))


class CudaLinear(Linear):
    """For CUDA, in fp32 or fp16: ONNX Runtime's fused operators."""

    def linear_activation(self, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        return add_and_activate(self.g, self.product(x, weight), bias, activation)

    def add_and_norm(self, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm) -> Value:
        inputs = (self.product(x, weight), residual, norm.gamma, norm.beta, self.g.weight("bias", bias))
        return self.g.contrib("SkipLayerNormalization", *inputs, epsilon=norm.epsilon)


class CpuLinear(Linear):
    """For the CPU in fp32: the bias is part of the product.

    Gelu and LayerNormalization are vectorized; BiasGelu is only partly, SkipLayerNormalization not at all (2.0 ms
    against 0.3 + 0.3 on 967 x 768 numbers).
    """

    def affine(self, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        return self.g.op("Gemm", x, self.g.weight("weight", weight.transposed()), self.g.weight("bias", bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """Activations [rows, in] as u8: (codes - zero_point) * scale."""

    codes: Value  # [rows, in]
    scale: Value  # [rows, 1]
    zero_point: int


class Int8PerTokenLinear(Linear):
    """For the CPU in int8. Quantizes each value once, however many products read it."""

    def __init__(self, g: GraphBuilder) -> None:
        super().__init__(g)
        self._quantized: dict[Value, Quantized] = {}
        self._minimum: dict[Value, float] = {}  # lower bound of values that an activation produced

    def product(self, x: Value, weight: LazyWeight) -> Value:
        if x not in self._quantized:
            self._quantized[x] = self._quantize(x)
        return multiply(self.g, self._quantized[x], weight)

    def linear_activation(self, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str) -> Value:
        result = super().linear_activation(x, weight, bias, activation)  # see CpuLinear
        if activation in ACTIVATION_MINIMUM:
            self._minimum[result] = ACTIVATION_MINIMUM[activation]
        return result

    def add_and_norm(self, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm) -> Value:
        g = self.g
        total = g.op("Add", g.op("Add", self.product(x, weight), residual), g.weight("bias", bias))
        return norm.of(g, total)

    def _quantize(self, x: Value) -> Quantized:
        """Reads `x` twice, for its maximum and minimum: cheaper than to write the magnitudes and read them once."""
        g = self.g
        axis = g.int64(-1)
        highest = g.op("ReduceMax", x, axis, keepdims=1)
        if x in self._minimum:
            return quantize_above(g, x, highest, self._minimum[x])
        return quantize(g, x, highest, g.op("Neg", g.op("ReduceMin", x, axis, keepdims=1)))


def quantize(g: GraphBuilder, x: Value, *magnitudes: Value) -> Quantized:
    """`x` [rows, in], whose magnitude is at most the largest of its row's `magnitudes` [rows, 1]."""
    largest = g.op("Max", *magnitudes, g.constant(np.float32(MIN_MAGNITUDE)))
    return _encode(g, x, g.op("Mul", largest, g.constant(np.float32(1 / QMAX))), ZERO_POINT)


def quantize_above(g: GraphBuilder, x: Value, highest: Value, lowest: float) -> Quantized:
    """`x` [rows, in], which lies between `lowest`, at most zero, and its row's `highest` [rows, 1]."""
    zero_point = ACTIVATED_ZERO_POINT if lowest else 0
    smallest = -lowest / zero_point if lowest else MIN_MAGNITUDE
    scale = g.op("Mul", highest, g.constant(np.float32(1 / (LARGEST_CODE - zero_point))))
    return _encode(g, x, g.op("Max", scale, g.constant(np.float32(smallest))), zero_point)


def _encode(g: GraphBuilder, x: Value, scale: Value, zero_point: int) -> Quantized:
    flat = g.op("Squeeze", scale, g.int64(-1))
    zeros = g.op("Expand", g.constant(np.uint8(zero_point)), g.op("Shape", flat))
    codes = g.op("QuantizeLinear", x, flat, zeros, axis=0)
    return Quantized(codes=codes, scale=scale, zero_point=zero_point)


def multiply(g: GraphBuilder, x: Quantized, weight: LazyWeight) -> Value:
    """x W in int8, [rows, out] in float32."""
    scale = g.weight("scale", weight.derived("scales", weight.shape[:1], channel_scales))
    stored = g.weight("weight", weight.derived("codes", weight.shape[::-1], _codes), TensorProto.INT8)
    inputs = (x.codes, stored, g.constant(np.float32(1)), scale, g.constant(np.uint8(x.zero_point)))
    return g.op("Mul", g.contrib("MatMulIntegerToFloat", *inputs), x.scale)


def channel_scales(weight: Array) -> Array:
    """[out]: the value of one int8 step of each output channel of `weight` [out, in]."""
    pairs = np.abs(np.add.reduceat(weight, np.arange(0, weight.shape[1], 2), axis=1)).max(axis=1)
    largest = np.maximum(np.abs(weight).max(axis=1) / np.float32(QMAX), pairs / np.float32(PAIR_MAX))
    return np.asarray(np.maximum(largest, np.float32(MIN_MAGNITUDE)))


def _codes(weight: Array) -> Array:
    """`weight` [out, in] in int8 steps; [in, out]."""
    return np.ascontiguousarray(np.rint(weight / channel_scales(weight)[:, None]).astype(np.int8).T)


def activate(g: GraphBuilder, x: Value, activation: str) -> Value:
    """The activation of x; SiLU is x times its sigmoid."""
    if activation == "silu":
        return g.op("Mul", x, g.op("Sigmoid", x))
    operator, domain = OPERATORS[activation]
    return g.op(operator, x, domain=domain)


def add_and_activate(g: GraphBuilder, x: Value, bias: LazyWeight, activation: str) -> Value:
    """The activation of x + bias."""
    value = g.weight("bias", bias)
    if activation in OPERATORS_WITH_BIAS:
        return g.contrib(OPERATORS_WITH_BIAS[activation], x, value)
    return activate(g, g.op("Add", x, value), activation)
