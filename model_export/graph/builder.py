"""Records operator calls as an ONNX graph: a call returns its output value, scopes name the nodes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tqdm import tqdm

from ..artifact.manifest import WEIGHTS, Tensor
from ..lazy_weight import LazyWeight

OPSET, CONTRIB, IR_VERSION = 20, "com.microsoft", 10
TYPES = {  # of values, as TensorProto numbers them
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
MIN_EXTERNAL_BYTES = 256  # smaller weights stand in the model's own file
PAGE_BYTES = 65536  # a larger weight begins at such a place in the weights' file: a mapping begins at a page


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of a graph: an input, a weight, or an operator's output."""

    name: str
    dtype: int = TensorProto.UNDEFINED  # known of inputs, weights and outputs of the graph, like the shape
    shape: tuple[str | int, ...] | None = None

    @property
    def info(self) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(self.name, self.dtype, self.shape)


@dataclass(slots=True, eq=False)
class Graph:
    """The graph of a model, or the body of a loop."""

    name: str
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: "list[Node]" = field(default_factory=list)

    def proto(self, weights: Sequence[TensorProto] = ()) -> onnx.GraphProto:
        inputs, outputs = [one.info for one in self.inputs], [one.info for one in self.outputs]
        return helper.make_graph([node.proto() for node in self.nodes], self.name, inputs, outputs, list(weights))


Attribute = int | float | str | Sequence[int] | Graph


@dataclass(slots=True, eq=False)
class Node:
    """A call of an operator. The names of its values may still change."""

    operator: str
    domain: str
    name: str
    inputs: Sequence[Value | None]
    outputs: Sequence[Value]
    attributes: Mapping[str, Attribute]

    def proto(self) -> onnx.NodeProto:
        plain: dict[str, Any] = {
            name: one.proto() if isinstance(one, Graph) else one for name, one in self.attributes.items()
        }
        inputs, outputs = [one.name if one else "" for one in self.inputs], [one.name for one in self.outputs]
        return helper.make_node(self.operator, inputs, outputs, self.name, domain=self.domain or None, **plain)


class GraphBuilder:
    """Builds a model. Names are paths (`layers.0/attention/MatMul`); a name used again gets a number.

    `dtype` is that of weights and activations: "float32" or "float16".
    """

    def __init__(self, dtype: str = "float32", opset: int = OPSET) -> None:
        self.dtype = dtype
        self._opset = opset
        self._graph = Graph("bert")
        self._nodes = self._graph  # the graph that nodes are added to: `_graph`, or the body of a loop
        self._scopes: list[str] = []
        self._used: dict[str, int] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], Value] = {}
        self._weights: dict[tuple[str, int], Value] = {}
        self._contents: dict[Value, LazyWeight | NDArray[np.generic]] = {}  # of weights and constants

    def input(self, name: str, dtype: str, shape: Sequence[str | int]) -> Value:
        """An input of the graph: the same value if it was declared before."""
        if known := [one for one in self._graph.inputs if one.name == name]:
            return known[0]
        value = Value(name, TYPES[dtype], tuple(shape))
        self._graph.inputs.append(value)
        return value

    def output(self, name: str, value: Value, dtype: str, shape: Sequence[str | int]) -> None:
        self.expose(name, self.op("Identity", value), dtype, shape)

    def expose(self, name: str, value: Value, dtype: str, shape: Sequence[str | int]) -> None:
        """Makes a value an output, under this name. No node is added."""
        value.name, value.shape, value.dtype = name, tuple(shape), TYPES[dtype]
        self._graph.outputs.append(value)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of nodes and weights that are made inside."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    @contextmanager
    def using_dtype(self, dtype: str) -> Iterator[None]:
        """Gives weights that are made inside another dtype; values need `cast`."""
        before, self.dtype = self.dtype, dtype
        yield
        self.dtype = before

    def cast(self, value: Value, source: str) -> Value:
        """`value`, which has dtype `source`, as `dtype`."""
        return value if source == self.dtype else self.op("Cast", value, to=int(TYPES[self.dtype]))

    def op(self, kind: str, *inputs: Value | None, domain: str = "", **attributes: Attribute) -> Value:
        """The output of an operator that has a single output."""
        return self.ops(kind, *inputs, domain=domain, outputs=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: Value | None, outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[Value]:
        """The outputs of an operator."""
        path = self._path(kind)
        results = [Value(f"{path}:{i}") for i in range(outputs)]
        self._nodes.nodes.append(Node(kind, domain, path, inputs, results, attributes))
        return results

    def loop(
        self,
        count: Value,
        carried: Mapping[Value, str],
        body: Callable[[Value, Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """The values `carried` (by dtype) after `count` [1] passes of `body`, in the order given.

        `body` makes their next values from the number of the pass, an int64 without dimensions, and from their last
        values. Weights that it makes belong to the model. ONNX Runtime does not run the body if `count` is 0.
        """
        types = [TYPES["int64"], TensorProto.BOOL, *(TYPES[dtype] for dtype in carried.values())]
        inputs = [Value(self._path("Loop/in"), kind) for kind in types]
        inputs[0].shape = inputs[1].shape = ()
        outer, self._nodes = self._nodes, Graph(self._path("Loop/body"), inputs)
        results = [self.op("Identity", inputs[1]), *body(inputs[0], inputs[2:])]
        for value, kind in zip(results, types[1:], strict=True):
            value.dtype = kind
        self._nodes.outputs.extend(results)
        inner, self._nodes = self._nodes, outer
        return self.ops("Loop", count, None, *carried, outputs=len(carried), body=inner)

    def contrib(self, kind: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """The output of an operator of ONNX Runtime's own domain."""
        return self.op(kind, *inputs, domain=CONTRIB, **attributes)

    def weight(self, name: str, weight: LazyWeight, dtype: int | None = None) -> Value:
        """A weight of the model; weights of equal cache keys (a layer that several share) are one value."""
        dtype = dtype or TYPES[self.dtype]
        if (weight.cache_key, dtype) in self._weights:
            return self._weights[weight.cache_key, dtype]
        value = self._initializer(self._path(name), dtype, weight)
        if weight.cache_key:
            self._weights[weight.cache_key, dtype] = value
        return value

    def inputs(self) -> dict[str, Tensor]:
        return {value.name: _tensor(value) for value in self._graph.inputs}

    def outputs(self) -> dict[str, Tensor]:
        return {value.name: _tensor(value) for value in self._graph.outputs}

    def constant(self, content: NDArray[np.generic] | np.generic) -> Value:
        """A small array or number; equal contents are one value."""
        array = np.asarray(content)
        key = (str(array.dtype), array.tobytes(), array.shape)
        if key not in self._constants:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self._constants[key] = self._initializer(f"constant.{len(self._constants)}", kind, array)
        return self._constants[key]

    def int64(self, *numbers: int) -> Value:
        """A list as a constant, such as a shape or axes."""
        return self.constant(np.array(numbers, np.int64))

    def save(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Writes the model to `path` and its weights beside it, one weight in memory at a time.

        `metadata` is stored in the model. Raises ExportError if a weight of the checkpoint is damaged.
        """
        size = sum(_bytes_of(value) for value in self._contents)
        with (
            path.with_name(WEIGHTS).open("wb") as file,
            tqdm(total=size, unit="B", unit_scale=True, desc="writing weights", delay=2, leave=False) as bar,
        ):
            tensors = []
            for value, content in self._contents.items():
                tensors.append(_write_tensor(value, content, file))
                bar.update(_bytes_of(value))
        onnx.save(self._model(metadata or {}, tensors), path)

    def load_weights(self) -> None:
        """Loads each weight and drops it. Raises ExportError if the checkpoint's is damaged."""
        for content in self._contents.values():
            if isinstance(content, LazyWeight):
                content.load()

    def save_sharing(self, path: Path, model: Path) -> None:
        """Writes the model to `path`, beside the written `model`, whose weights of the same names it has.

        The weights in the weights' file are only named; small weights are written to both models.
        """
        written = {one.name: one for one in onnx.load(model, load_external_data=False).graph.initializer}
        tensors = []
        for value, content in self._contents.items():
            tensor = written[value.name] if isinstance(content, LazyWeight) else _plain_tensor(value, content)
            assert (tuple(tensor.dims), tensor.data_type) == (value.shape, value.dtype), value.name
            tensors.append(tensor)
        onnx.save(self._model({}, tensors), path)

    def _model(self, metadata: Mapping[str, str], tensors: Sequence[TensorProto]) -> onnx.ModelProto:
        model = helper.make_model(
            self._graph.proto(tensors),
            opset_imports=[helper.make_opsetid("", self._opset), helper.make_opsetid(CONTRIB, 1)],
            ir_version=IR_VERSION,
            producer_name="packbert",
            producer_version=version("packbert"),
        )
        helper.set_model_props(model, dict(metadata))
        return model

    def _initializer(self, name: str, dtype: int, content: LazyWeight | NDArray[np.generic]) -> Value:
        value = Value(name, dtype, tuple(content.shape))
        self._contents[value] = content
        return value

    def _path(self, name: str) -> str:
        path = "/".join([*self._scopes, name])
        count = self._used.get(path, 0)
        self._used[path] = count + 1
        return f"{path}.{count}" if count else path


def _tensor(value: Value) -> Tensor:
    assert value.shape is not None
    return Tensor(dtype=str(helper.tensor_dtype_to_np_dtype(value.dtype)), shape=value.shape)


def _bytes_of(value: Value) -> int:
    """The size of a weight."""
    return math.prod(map(int, value.shape or ())) * int(helper.tensor_dtype_to_np_dtype(value.dtype).itemsize)


def _plain_tensor(value: Value, content: LazyWeight | NDArray[np.generic]) -> TensorProto:
    """The weight inside the model's file."""
    return numpy_helper.from_array(_load(value, content), value.name)


def _load(value: Value, content: LazyWeight | NDArray[np.generic]) -> NDArray[np.generic]:
    array = content.load() if isinstance(content, LazyWeight) else content
    return np.ascontiguousarray(array, helper.tensor_dtype_to_np_dtype(value.dtype)).reshape(array.shape)


def _write_tensor(value: Value, content: LazyWeight | NDArray[np.generic], file: BinaryIO) -> TensorProto:
    """A small weight inside the model's file, another weight at the end of the weights' file."""
    size = _bytes_of(value)
    if size < MIN_EXTERNAL_BYTES:
        return _plain_tensor(value, content)
    array = _load(value, content)
    step = PAGE_BYTES if size >= PAGE_BYTES else MIN_EXTERNAL_BYTES
    offset = -(-file.tell() // step) * step
    file.seek(offset)
    array.tofile(file)
    tensor = TensorProto(name=value.name, data_type=value.dtype, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(size))):
        tensor.external_data.add(key=key, value=entry)
    return tensor
