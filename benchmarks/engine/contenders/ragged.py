"""Our graph for another runtime: only the outputs that are vectors of texts."""

from pathlib import Path

import onnx

from benchmarks.engine.contenders.padding import CLS, MEAN


def write_vectors_only(model: Path, path: Path) -> None:
    """`model` with the outputs `cls` and `mean` and the nodes that they need, over the same file of weights.

    OpenVINO computes all outputs of a graph, and refuses nodes of other heads.
    """
    read = onnx.load(model, load_external_data=False)
    graph = read.graph
    outputs = [output for output in graph.output if output.name in (CLS, MEAN)]
    needed, nodes = {output.name for output in outputs}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    kept = {
        "output": outputs,
        "node": nodes[::-1],
        "initializer": [one for one in graph.initializer if one.name in needed],
        "input": [one for one in graph.input if one.name in needed],
    }
    for name, values in kept.items():
        graph.ClearField(name)
        getattr(graph, name).extend(values)
    onnx.save(read, path)
