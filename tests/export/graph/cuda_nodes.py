"""The nodes of a graph, with what decides whether ONNX Runtime has a CUDA kernel for them: operator, version, types."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import AttributeProto, TensorProto, defs

from packbert.model_export.graph.builder import OPSET, GraphBuilder

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
Types = dict[str, int]  # of values, by their names, as TensorProto numbers them


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    domain: str
    operator: str
    version: int  # of the operator: the opset that last changed it, at most the graph's
    types: tuple[str, ...]  # of the inputs; "" for one that is left out


def node_kinds(g: GraphBuilder) -> set[NodeKind]:
    """Of all nodes, those of loops included. Raises KeyError if the type of a value is not known."""
    with TemporaryDirectory() as folder:
        g.save(path := Path(folder) / "model.onnx")
        return set(_kinds(onnx.load(path).graph, {}))


def _kinds(graph: onnx.GraphProto, outer: Types) -> Iterator[NodeKind]:
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
            return [BOOL]
        case "NonZero":
            return [INT64]
        case "TopK":
            return [present[0], INT64]
        case "Where":
            return [present[1]]
        case "EmbedLayerNormalization":
            return [next(one for one in present if one in FLOATS), TensorProto.INT32]
        case "Loop":
            return present[1:]  # the condition is left out
    return present[:1]
