"""The encoder of an artifact in bf16, run by OpenVINO: graph inputs to the hidden states, in float32.

It reads the fp32 graph with the hidden states as outputs, and computes those alone; the heads stay with ONNX Runtime.
The products and the operators between them run in bf16, with sums in fp32. Its imports are NumPy and OpenVINO.
`cpu.why_bf16_unavailable` says whether this machine can run bf16.
"""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import LAST, Arrays, RunGraph, hidden_name
from .cpu import BF16, float_state_kept

# The import of OpenVINO writes an id for its telemetry to ~/intel. Without this package it has none.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
import openvino as ov  # noqa: E402
from openvino import opset13  # noqa: E402
from openvino.frontend import FrontEndManager  # noqa: E402

STATES, PREFIX = hidden_name(LAST), hidden_name(0).removesuffix("0")
MAX_SMALL_BYTES = 2**16  # of a weight that stays in fp32: biases and norms, which OpenVINO adds in fp32
# OpenVINO folds a conversion of a constant to fp32 unless it has this mark, and then holds the weights in fp32 too
KEPT_NARROW = "decompression_0"
READING = threading.Lock()  # two threads that replaced constants at the same time waited for each other for ever
CACHED_SHAPES = 256  # kernels kept for shapes, by OpenVINO (per stream) and by oneDNN; defaults: 5,000 and 1,024


class OpenVinoEncoder:
    """Runs side by side in `streams` threads, each with `threads` cores; the weights are held once for all of them."""

    def __init__(self, graph: Path, *, all_layers: bool, threads: int, streams: int = 1) -> None:
        """Reads the graph LAYERS of the manifest, whose outputs are the hidden states by their `hidden_name`.

        Without `all_layers` only STATES can be asked for: every output stays in memory until a run ends. `threads` of
        0 are all that this process may use. Raises what OpenVINO raises on a bad graph.
        """
        os.putenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(CACHED_SHAPES))  # read when the first kernel is made
        with READING:
            model = _read(graph, all_layers=all_layers)
        options = {
            "INFERENCE_PRECISION_HINT": BF16,
            "INFERENCE_NUM_THREADS": threads * streams,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": False,  # two processes would pin their threads to the same cores
            "CPU_DENORMALS_OPTIMIZATION": True,  # attention probabilities of other sequences in a row are denormal
            "CPU_RUNTIME_CACHE_CAPACITY": CACHED_SHAPES,
        }
        with float_state_kept():  # compiling turns denormals off for the calling thread too
            self._compiled = ov.Core().compile_model(model, "CPU", options)
        self.inputs = tuple(one.get_any_name() for one in self._compiled.inputs)
        self.outputs = tuple(one.get_any_name() for one in self._compiled.outputs)
        self._idle: list[Any] = []  # requests that no thread uses

    def run(self, names: Sequence[str], feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        """The hidden states `names`: after the last layer [chosen, hidden], after another layer [tokens, hidden]."""
        try:
            request = self._idle.pop()
        except IndexError:  # as many are made as run at once
            request = self._compiled.create_infer_request()
        try:
            request.infer({name: feeds[name] for name in self.inputs}, share_inputs=True)
            return {name: request.get_tensor(name).data.copy() for name in names}
        finally:
            self._idle.append(request)

    def run_with_heads(self, run_heads: RunGraph, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """The outputs `names` of the model: hidden states by this encoder, the others by the graph HEADS."""
        of_heads = [name for name in names if name not in self.outputs]
        read = {name for name in names if name not in of_heads} | ({STATES} if of_heads else set())
        found = self.run(sorted(read), feeds)
        if of_heads:
            values = run_heads(of_heads, {**feeds, STATES: found[STATES]})
            found |= dict(zip(of_heads, values, strict=True))
        return [found[name] for name in names]


def _read(path: Path, *, all_layers: bool) -> Any:
    """The part of the graph that computes hidden states, with its own weights in memory: no file stays mapped."""
    frontend = FrontEndManager().load_by_framework("onnx")
    loaded = frontend.load(str(path), True)  # maps the weights
    outputs = {name: one for one in loaded.get_outputs() for name in one.get_names() if name.startswith(PREFIX)}
    loaded.override_all_outputs(list(outputs.values()) if all_layers else [outputs[STATES]])
    model = frontend.convert(loaded)
    for parameter in model.get_parameters():
        if not parameter.output(0).get_target_inputs():
            model.remove_parameter(parameter)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32:
            _own(node)
    return model


def _own(weight: Any) -> None:
    """Replaces a weight by a copy in memory: in bf16, or in fp32 if it is small."""
    readers = weight.output(0).get_target_inputs()
    if weight.get_byte_size() <= MAX_SMALL_BYTES:
        copy = ov.op.Constant(ov.Tensor(np.array(weight.data)), False)
    else:
        tensor = ov.Tensor(ov.Type.bf16, list(weight.shape))
        tensor.data.view(np.uint16)[:] = to_bf16(weight.data)
        copy = opset13.convert(ov.op.Constant(tensor, False), "f32")
        copy.get_rt_info()[KEPT_NARROW] = ""
    for reader in readers:
        reader.replace_source_output(copy.output(0))


def to_bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of `array` rounded to bf16, to the nearest and to even in a tie; finite numbers only."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16).astype(np.uint16)
