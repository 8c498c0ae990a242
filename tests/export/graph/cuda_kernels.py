"""The nodes of a graph, and the operators for which ONNX Runtime 1.31.1 has CUDA kernels, as far as they are used.

A kernel is found by operator, version and types: an open-ended registration holds for its own version of the operator
alone (`VerifyVersion` in core/framework/kernel_registry.cc), so an operator that a later opset changed may have none.
The rows are from the registrations in the files named, below onnxruntime/ in its repository (docs/OperatorKernels.md
lists them). The opsets and types were confirmed with the package onnxruntime-gpu 1.31.1: each row's operator alone, in
each opset from 13 to 25, was given to its CUDA provider, which took it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import AttributeProto, TensorProto, defs

from packbert.model_export.graph.builder import CONTRIB, OPSET, GraphBuilder

FLOATS = frozenset({"float", "float16"})
NUMBERS = FLOATS | {"int32", "int64"}
ANY = NUMBERS | {"bool"}
INDEX = frozenset({"int32", "int64"})
INT32, INT64, BOOL = frozenset({"int32"}), frozenset({"int64"}), frozenset({"bool"})
Types = frozenset[str]
CUDA = "core/providers/cuda"
BERT = "contrib_ops/cuda/bert"
ELEMENTS = f"{CUDA}/math/binary_elementwise_ops.cc"
ACTIVATIONS = f"{CUDA}/activation/activations.cc"


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    domain: str
    operator: str
    version: int  # of the operator: the opset that last changed it, at most the graph's
    types: tuple[str, ...]  # of the inputs; "" for one that is left out


@dataclass(frozen=True, slots=True)
class Kernel:
    operator: str
    inputs: tuple[Types, ...]  # possible types of each; the last one also of all further inputs
    source: str
    opsets: tuple[int, int] = (13, 25)  # first and last in which the operator has this kernel
    domain: str = ""

    def takes(self, kind: NodeKind) -> bool:
        if (self.domain, self.operator) != (kind.domain, kind.operator):
            return False
        allowed = self.inputs + self.inputs[-1:] * len(kind.types)
        fits = all(not one or one in types for one, types in zip(kind.types, allowed, strict=False))
        return fits and (bool(self.domain) or self.opsets[0] <= OPSET <= self.opsets[1])


KERNELS = (
    Kernel("Add", (NUMBERS,), ELEMENTS),
    Kernel("Cast", (ANY,), f"{CUDA}/tensor/cast_op.cc"),
    Kernel("Concat", (ANY,), f"{CUDA}/tensor/concat.cc"),
    Kernel("Div", (NUMBERS,), ELEMENTS),
    Kernel("Equal", (ANY,), ELEMENTS),
    Kernel("Expand", (ANY, INT64), f"{CUDA}/tensor/expand.cc"),  # not confirmed: read in the registration
    Kernel("Gather", (ANY, INDEX), f"{CUDA}/tensor/gather.cc"),
    Kernel("GatherElements", (ANY, INDEX), f"{CUDA}/tensor/gather_elements.cc"),
    Kernel("GatherND", (FLOATS | INT64 | BOOL, INT64), f"{CUDA}/tensor/gather_nd.cc"),
    Kernel("Gemm", (FLOATS,), f"{CUDA}/math/gemm.cc"),
    Kernel("Identity", (ANY,), f"{CUDA}/tensor/identity_op.cc"),
    Kernel("LayerNormalization", (FLOATS,), f"{CUDA}/nn/layer_norm.cc", (17, 25)),
    Kernel("LogSoftmax", (FLOATS,), f"{CUDA}/math/softmax.cc"),
    Kernel("Loop", (INT64, BOOL, ANY), f"{CUDA}/controlflow/loop.cc", (18, 25)),  # confirmed with the sparse head
    Kernel("MatMul", (FLOATS,), f"{CUDA}/math/matmul.cc"),
    Kernel("Max", (NUMBERS,), ELEMENTS),
    Kernel("Mul", (NUMBERS,), ELEMENTS),
    Kernel("NonZero", (ANY,), f"{CUDA}/tensor/nonzero_op.cc"),
    Kernel("ReduceL2", (FLOATS | INT32, INT64), f"{CUDA}/reduction/reduction_ops.cc", (18, 25)),
    Kernel("ReduceMax", (NUMBERS, INT64), f"{CUDA}/reduction/reduction_ops.cc", (18, 25)),
    Kernel("Relu", (FLOATS,), ACTIVATIONS),
    Kernel("Reshape", (ANY, INT64), f"{CUDA}/tensor/reshape.cc"),
    Kernel("Sigmoid", (FLOATS,), ACTIVATIONS),
    Kernel("Slice", (ANY, INT64), f"{CUDA}/tensor/slice.cc"),  # not confirmed: read in the registration
    Kernel("Softmax", (FLOATS,), f"{CUDA}/math/softmax.cc"),
    Kernel("Squeeze", (ANY, INT64), f"{CUDA}/tensor/squeeze.cc"),
    Kernel("Sub", (NUMBERS,), ELEMENTS),
    Kernel("Tanh", (FLOATS,), ACTIVATIONS),
    Kernel("TopK", (NUMBERS, INT64), f"{CUDA}/math/topk.cc"),
    Kernel("Transpose", (ANY,), f"{CUDA}/tensor/transpose.cc"),
    Kernel("Unsqueeze", (ANY, INT64), f"{CUDA}/tensor/unsqueeze.cc"),
    Kernel("Where", (BOOL, NUMBERS), f"{CUDA}/tensor/where.cc"),
    Kernel("BiasGelu", (FLOATS,), "contrib_ops/cuda/math/bias_gelu.cc", domain=CONTRIB),
    Kernel(
        "EmbedLayerNormalization",
        (INT32, INT32, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, INT32),
        f"{BERT}/embed_layer_norm.cc",
        domain=CONTRIB,
    ),
    Kernel("FastGelu", (FLOATS,), f"{BERT}/fast_gelu.cc", domain=CONTRIB),
    Kernel("FusedMatMul", (FLOATS,), "contrib_ops/cuda/math/fused_matmul.cc", domain=CONTRIB),
    Kernel("Gelu", (FLOATS,), f"{CUDA}/tensor/gelu.cc", domain=CONTRIB),
    Kernel(
        "PackedMultiHeadAttention",
        (FLOATS, FLOATS, FLOATS, FLOATS, INT32),
        f"{BERT}/packed_multihead_attention.cc",
        domain=CONTRIB,
    ),
    Kernel("RotaryEmbedding", (FLOATS, INT64, FLOATS, FLOATS), f"{BERT}/rotary_embedding.cc", domain=CONTRIB),
    Kernel("SkipLayerNormalization", (FLOATS,), f"{BERT}/skip_layer_norm.cc", domain=CONTRIB),
)


def node_kinds(g: GraphBuilder) -> set[NodeKind]:
    """Of all nodes, those of loops included. Raises KeyError if the type of a value is not known."""
    with TemporaryDirectory() as folder:
        g.save(path := Path(folder) / "model.onnx")
        return set(_kinds(onnx.load(path).graph, {}))


def _kinds(graph: onnx.GraphProto, outer: dict[str, int]) -> Iterator[NodeKind]:
    known = outer | {one.name: one.type.tensor_type.elem_type for one in graph.input}
    known |= {one.name: one.data_type for one in graph.initializer}
    for node in graph.node:
        types = [known[name] if name else None for name in node.input]
        names = tuple("" if one is None else TensorProto.DataType.Name(one).lower() for one in types)
        version = 1 if node.domain else defs.get_schema(node.op_type, OPSET, node.domain).since_version
        yield NodeKind(node.domain, node.op_type, version, names)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _kinds(attribute.g, known)
        known.update(zip(node.output, _results(node, types), strict=False))


def _results(node: onnx.NodeProto, types: list[int | None]) -> list[int]:
    """The types of the outputs, as the operators of ONNX and of ONNX Runtime define them."""
    present = [one for one in types if one is not None]
    match node.op_type:
        case "Cast":
            return [next(one.i for one in node.attribute if one.name == "to")]
        case "Equal":
            return [TensorProto.BOOL]
        case "NonZero":
            return [TensorProto.INT64]
        case "TopK":
            return [present[0], TensorProto.INT64]
        case "Where":
            return [present[1]]
        case "EmbedLayerNormalization":
            return [next(one for one in present if one in (TensorProto.FLOAT, TensorProto.FLOAT16)), TensorProto.INT32]
        case "Loop":
            return present[1:]  # the condition is left out
    return present[:1]
