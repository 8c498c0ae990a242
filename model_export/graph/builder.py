"""Records operator calls as an ONNX graph with onnx_ir: a call returns its output value, scopes name the nodes."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from tqdm import tqdm

from packbert.model_export.artifact.manifest import WEIGHTS
from packbert.model_export.lazy_weight import LazyWeight

Value = ir.Value
Attribute = int | float | str | Sequence[int] | ir.Graph
Signature = tuple[str, str, tuple[str | int, ...]]  # name, dtype, shape
OPSET, CONTRIB = 20, "com.microsoft"
TYPES = {
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
}


class GraphBuilder:
    """Builds one model. Names are paths (`layers.0/attention/MatMul`); a name used again gets a number.

    `dtype` is that of weights and activations: "float32" or "float16".
    """

    def __init__(self, dtype: str = "float32", opset: int = OPSET) -> None:
        self.dtype = dtype
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": opset, CONTRIB: 1}, name="bert")
        self._nodes = self._graph  # the graph that nodes are added to: this one, or the body of a loop
        self._scopes: list[str] = []
        self._used: dict[str, int] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], Value] = {}
        self._weights: dict[tuple[str, ir.DataType], Value] = {}

    def input(self, name: str, dtype: str, shape: Sequence[str | int]) -> Value:
        """An input of the model; the same value where one of this name is declared already."""
        if declared := [value for value in self._graph.inputs if value.name == name]:
            return declared[0]
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(TYPES[dtype]))
        self._graph.inputs.append(value)
        return value

    def output(self, name: str, value: Value, dtype: str, shape: Sequence[str | int]) -> None:
        result = self.op("Identity", value)
        result.name, result.shape, result.type = name, ir.Shape(shape), ir.TensorType(TYPES[dtype])
        self._graph.outputs.append(result)

    def expose(self, name: str, value: Value, dtype: str, shape: Sequence[str | int]) -> None:
        """Makes a value an output, under this name. No node is added."""
        value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(TYPES[dtype])
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
        """An operator with one output."""
        return self.ops(kind, *inputs, domain=domain, outputs=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: Value | None, outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[Value]:
        """An operator with several outputs."""
        attrs = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        path = self._path(kind)
        node = ir.Node(domain, kind, inputs, attrs, num_outputs=outputs, name=path)
        for i, value in enumerate(node.outputs):
            value.name = f"{path}:{i}"
        self._nodes.append(node)
        return node.outputs

    def loop(
        self,
        count: Value,
        carried: Mapping[Value, str],
        body: Callable[[Value, Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """The values `carried` (by dtype) after `count` [1] passes of `body`, in the order given.

        `body` makes their next values from the number of the pass, an int64 without dimensions, and from their last
        ones. Weights that it makes belong to the model. ONNX Runtime does not run the body where `count` is 0.
        """
        types = [ir.TensorType(kind) for kind in (TYPES["int64"], ir.DataType.BOOL)]
        types += [ir.TensorType(TYPES[dtype]) for dtype in carried.values()]
        inputs = [ir.Value(name=f"{self._path('Loop/in')}", type=kind) for kind in types]
        inputs[0].shape, inputs[1].shape = ir.Shape([]), ir.Shape([])
        outer, self._nodes = self._nodes, ir.Graph(inputs, [], nodes=[], name=self._path("Loop/body"))
        results = [self.op("Identity", inputs[1]), *body(inputs[0], inputs[2:])]
        for value, kind in zip(results, types[1:], strict=True):
            value.type = kind
        self._nodes.outputs.extend(results)
        inner, self._nodes = self._nodes, outer
        return self.ops("Loop", count, None, *carried, outputs=len(carried), body=inner)

    def contrib(self, kind: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """An operator of ONNX Runtime's own domain."""
        return self.op(kind, *inputs, domain=CONTRIB, **attributes)

    def weight(self, name: str, weight: LazyWeight, dtype: ir.DataType | None = None) -> Value:
        """A weight of the model; weights of equal cache keys (a layer that several share) are one value."""
        dtype = dtype or TYPES[self.dtype]
        if (weight.cache_key, dtype) in self._weights:
            return self._weights[weight.cache_key, dtype]
        path, kind = self._path(name), dtype.numpy()
        lazy = ir.LazyTensor(
            lambda: ir.tensor(weight.load().astype(kind, copy=False), name=path),
            dtype,
            ir.Shape(weight.shape),
            name=path,
        )
        value = self._initializer(lazy, weight.shape)
        if weight.cache_key:
            self._weights[weight.cache_key, dtype] = value
        return value

    def own_weight(self, name: str, weight: LazyWeight, dtype: ir.DataType) -> Value:
        """As `weight`, but no two nodes read the same value; it is in the file once.

        ONNX Runtime's conversion of int8 weights (`cpu.multiply_exactly`) fails where two nodes read one. It folds the
        Reshape when a session is opened.
        """
        value = self.weight(name, weight, dtype)
        return self.op("Reshape", value, self.constant(np.array(weight.shape, np.int64))) if value.uses() else value

    def inputs(self) -> list[Signature]:
        return [_signature(value) for value in self._graph.inputs]

    def outputs(self) -> list[Signature]:
        return [_signature(value) for value in self._graph.outputs]

    def named(self, path: str) -> Value:
        """A weight made before, by its path."""
        return self._graph.initializers[path]

    def constant(self, content: NDArray[np.generic] | np.generic) -> Value:
        """A small array or number; equal ones are one value."""
        array = np.asarray(content)
        key = (str(array.dtype), array.tobytes(), array.shape)
        if key not in self._constants:
            tensor = ir.tensor(array, name=f"constant.{len(self._constants)}")
            self._constants[key] = self._initializer(tensor, array.shape)
        return self._constants[key]

    def save(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Writes the model to `path` and its weights beside it, one weight in memory at a time.

        `metadata` is stored in the model. Raises ExportError where a weight of the checkpoint is damaged.
        """
        logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of every lazy tensor
        model = self._model(metadata or {})
        size = sum(one.const_value.nbytes for one in self._graph.initializers.values() if one.const_value is not None)
        with tqdm(total=size, unit="B", unit_scale=True, desc="writing weights", delay=2, leave=False) as bar:
            ir.save(
                model,
                path,
                external_data=WEIGHTS,
                callback=lambda tensor, _: bar.update(tensor.nbytes),
                max_workers=1,
                max_in_flight_bytes=1,
            )

    def save_sharing(self, path: Path, model: Path) -> None:
        """Writes the model to `path`, beside the written `model`, whose weights of the same names it has.

        The weights in the weights' file are only named; the small ones are written to both models.
        """
        with warnings.catch_warnings(action="ignore"):  # of prepacked copies, which it does not know
            written = ir.load(model).graph.initializers
        for name, value in self._graph.initializers.items():
            if isinstance(value.const_value, ir.LazyTensor):  # not a constant
                tensor = written[name].const_value
                assert tensor is not None
                assert (tensor.shape, tensor.dtype) == (value.shape, value.dtype), name
                value.const_value = tensor
        ir.save(self._model({}), path)

    def _model(self, metadata: Mapping[str, str]) -> ir.Model:
        return ir.Model(
            self._graph,
            ir_version=10,
            producer_name="packbert",
            producer_version=version("packbert"),
            metadata_props=dict(metadata),
        )

    def _initializer(self, tensor: ir.TensorProtocol, shape: Sequence[int]) -> Value:
        value = ir.Value(name=tensor.name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _path(self, name: str) -> str:
        path = "/".join([*self._scopes, name])
        count = self._used.get(path, 0)
        self._used[path] = count + 1
        return f"{path}.{count}" if count else path


def _signature(value: Value) -> Signature:
    assert value.name
    assert value.dtype
    assert value.shape is not None
    return value.name, str(value.dtype.numpy()), tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
