"""A small tape over onnx_ir: an operator call returns a value, scopes name the nodes, weights are written as they are made."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from model_export.checkpoints.lazy_weight import LazyWeight

Value = ir.Value
Attribute = int | float | str | Sequence[int]
OPSET, CONTRIB = 20, "com.microsoft"
WEIGHTS_FILE = "model.onnx.data"
TYPES = {
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
}


class GraphBuilder:
    """Builds one model. Names are paths (`layers.0/attention/MatMul`); a name used twice gets a number.

    `computes` is the dtype of weights and activations: "float32" or "float16".
    """

    def __init__(self, computes: str = "float32") -> None:
        self.computes = computes
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, CONTRIB: 1}, name="bert")
        self._scopes: list[str] = []
        self._used: dict[str, int] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], Value] = {}
        self._weights: dict[tuple[str, ir.DataType], Value] = {}

    def input(self, name: str, dtype: str, shape: Sequence[str | int]) -> Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(TYPES[dtype]))
        self._graph.inputs.append(value)
        return value

    def output(self, name: str, value: Value, dtype: str, shape: Sequence[str | int]) -> None:
        result = self.op("Identity", value)
        result.name, result.shape, result.type = name, ir.Shape(shape), ir.TensorType(TYPES[dtype])
        self._graph.outputs.append(result)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()

    @contextmanager
    def computing_in(self, dtype: str) -> Iterator[None]:
        """Weights made inside have this dtype; values are cast by `cast`."""
        before, self.computes = self.computes, dtype
        yield
        self.computes = before

    def cast(self, value: Value, source: str) -> Value:
        """`value`, which is of dtype `source`, as `computes`."""
        return value if source == self.computes else self.op("Cast", value, to=int(TYPES[self.computes]))

    def op(self, kind: str, *inputs: Value | None, domain: str = "", **attributes: Attribute) -> Value:
        return self.ops(kind, *inputs, domain=domain, outputs=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: Value | None, outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[Value]:
        attrs = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        path = self._path(kind)
        node = ir.Node(domain, kind, inputs, attrs, num_outputs=outputs, name=path)
        for i, value in enumerate(node.outputs):
            value.name = f"{path}:{i}"
        self._graph.append(node)
        return node.outputs

    def contrib(self, kind: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """An operator of ONNX Runtime's own domain."""
        return self.op(kind, *inputs, domain=CONTRIB, **attributes)

    def weight(self, name: str, weight: LazyWeight, dtype: ir.DataType | None = None) -> Value:
        """A weight of the model; one that has been made before (a layer that several share) is the same value."""
        dtype = dtype or TYPES[self.computes]
        if (weight.origin, dtype) in self._weights:
            return self._weights[weight.origin, dtype]
        path, kind = self._path(name), dtype.numpy()
        lazy = ir.LazyTensor(
            lambda: ir.tensor(weight.load().astype(kind, copy=False), name=path),
            dtype,
            ir.Shape(weight.shape),
            name=path,
        )
        value = ir.Value(name=path, shape=ir.Shape(weight.shape), type=ir.TensorType(dtype), const_value=lazy)
        self._graph.register_initializer(value)
        if weight.origin:
            self._weights[weight.origin, dtype] = value
        return value

    def inputs(self) -> list[tuple[str, str, tuple[str | int, ...]]]:
        """Name, dtype and shape of every input."""
        return [_signature(value) for value in self._graph.inputs]

    def outputs(self) -> list[tuple[str, str, tuple[str | int, ...]]]:
        return [_signature(value) for value in self._graph.outputs]

    def named(self, path: str) -> Value:
        """A weight made before, by its path."""
        return self._graph.initializers[path]

    def constant(self, content: NDArray[np.generic] | np.generic) -> Value:
        """A small array or number; equal ones share one value."""
        array = np.asarray(content)
        key = (str(array.dtype), array.tobytes(), array.shape)
        if key not in self._constants:
            tensor = ir.tensor(array, name=f"constant.{len(self._constants)}")
            value = ir.Value(
                name=tensor.name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            self._graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def save(
        self,
        path: Path,
        *,
        producer_version: str,
        written: Callable[[int], None],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the model, its weights beside it; calls `written` with the number of bytes of each weight before it is written."""
        logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of every lazily made tensor
        model = ir.Model(
            self._graph,
            ir_version=10,
            producer_name="bert-service",
            producer_version=producer_version,
            metadata_props=dict(metadata or {}),
        )
        ir.save(
            model,
            path,
            external_data=WEIGHTS_FILE,
            callback=lambda tensor, _: written(tensor.nbytes),
            max_workers=1,
            max_in_flight_bytes=1,
        )

    def _path(self, name: str) -> str:
        path = "/".join([*self._scopes, name])
        count = self._used.get(path, 0)
        self._used[path] = count + 1
        return f"{path}.{count}" if count else path


def _signature(value: Value) -> tuple[str, str, tuple[str | int, ...]]:
    assert value.name
    assert value.dtype
    assert value.shape is not None
    return value.name, str(value.dtype.numpy()), tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
