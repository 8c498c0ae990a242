"""The nodes of a graph, with what decides whether ONNX Runtime has a CUDA kernel for them: operator, version, types."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx import defs

from packbert.model_export.graph.builder import OPSET

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    domain: str
    operator: str
    version: int  # of the operator: the opset that last changed it, at most the graph's
    types: tuple[str, ...]  # of the inputs; "" for one that is left out


def node_kinds(graph: ir.Graph) -> set[NodeKind]:
    """Of all nodes, those of loops included. Raises AssertionError where the type of a value is not known."""
    known: dict[ir.Value, ir.DataType] = {}
    return set(_kinds(graph, known))


def _kinds(graph: ir.Graph, known: dict[ir.Value, ir.DataType]) -> Iterator[NodeKind]:
    for node in graph:
        types = [None if value is None else _type(value, known) for value in node.inputs]
        names = tuple("" if one is None else one.name.lower() for one in types)
        version = 1 if node.domain else defs.get_schema(node.op_type, OPSET, node.domain).since_version
        yield NodeKind(node.domain, node.op_type, version, names)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _kinds(attribute.as_graph(), known)
        known.update(zip(node.outputs, _results(node, types), strict=False))


def _type(value: ir.Value, known: dict[ir.Value, ir.DataType]) -> ir.DataType:
    found = value.dtype or known.get(value)
    assert found is not None, value.name
    return found


def _results(node: ir.Node, types: list[ir.DataType | None]) -> list[ir.DataType]:
    """The types of the outputs, as the operators of ONNX and of ONNX Runtime define them."""
    present = [one for one in types if one is not None]
    match node.op_type:
        case "Cast":
            return [ir.DataType(node.attributes["to"].as_int())]
        case "Equal":
            return [BOOL]
        case "NonZero":
            return [INT64]
        case "TopK":
            return [present[0], INT64]
        case "Where":
            return [present[1]]
        case "EmbedLayerNormalization":
            return [next(one for one in present if one.is_floating_point()), ir.DataType.INT32]
        case "Loop":
            return present[1:]  # the condition is left out
    return present[:1]
