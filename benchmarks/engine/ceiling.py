"""The ceiling: how fast ONNX Runtime multiplies matrices of the model's shapes on this machine."""

import json
import tempfile
import timeit
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks.engine.engines import Ids
from benchmarks.engine.turns import clock_for
from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.graph.linear import QMAX, ZERO_POINT
from packbert.model_export.lazy_weight import LazyWeight

IN_A_ROW = 4  # products of a per-core session that are timed together, so that starting a thread's work does not count
REPEATS = 3


class Ceiling:
    """The linear layers of a BERT checkpoint as bare products, for as many rows as the texts have tokens.

    One session runs on all threads, or one on each core with its share of the rows; the faster counts.
    """

    def __init__(self, checkpoint: Path, precision: str, threads: int) -> None:
        config = json.loads((checkpoint / "config.json").read_text())
        hidden, inner, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
        self._products = {(hidden, hidden): 4 * layers, (hidden, inner): layers, (inner, hidden): layers}
        self._type = np.float32 if precision == "fp32" else np.uint8
        self._threads, self._clock = threads, clock_for(threads)
        self._together = {shape: product_session(precision, *shape, threads) for shape in self._products}
        self._alone = {shape: product_session(precision, *shape, 1) for shape in self._products}
        self._pool = ThreadPoolExecutor(threads)

    def choices(self, texts: Sequence[Ids]) -> dict[str, None]:  # noqa: ARG002
        return {"products alone": None}

    def seconds(self, texts: Sequence[Ids], _: None) -> float:
        """Of all the model's products, best of REPEATS."""
        rows, total = sum(map(len, texts)), 0.0
        for shape, count in self._products.items():
            x = np.ones((rows, shape[0]), self._type)
            together = self._best(partial(self._together[shape].run, None, {"x": x}))
            side_by_side = self._best(partial(self._on_each_core, self._alone[shape], x[: -(-rows // self._threads)]))
            total += count * min(together, side_by_side / IN_A_ROW)
        return total

    def _best(self, call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, timer=self._clock, repeat=REPEATS, number=1))

    def _on_each_core(self, session: ort.InferenceSession, x: NDArray[np.generic]) -> None:
        def several() -> None:
            for _ in range(IN_A_ROW):
                session.run(None, {"x": x})

        for task in [self._pool.submit(several) for _ in range(self._threads)]:
            task.result()


def product_session(precision: str, width: int, out: int, threads: int) -> ort.InferenceSession:
    """A session with one product, [rows, width] x [width, out], and ONNX Runtime's own thread settings (it spins)."""
    g, random = GraphBuilder(), np.random.default_rng(6)
    x = g.input("x", "float32", ["rows", width])
    if precision == "fp32":
        w = g.weight("w", LazyWeight((width, out), lambda: random.standard_normal((width, out), np.float32)))
        y = g.op("MatMul", x, w)
    else:
        x.dtype = TensorProto.UINT8
        draw = LazyWeight((width, out), lambda: random.integers(-127, 128, (width, out), np.int8))
        w = g.weight("w", draw, TensorProto.INT8)
        scale = g.weight("scale", LazyWeight((out,), lambda: random.random(out, np.float32)))
        step, zero = g.constant(np.float32(1 / QMAX)), g.constant(np.uint8(ZERO_POINT))
        y = g.contrib("MatMulIntegerToFloat", x, w, step, scale, zero)
    g.output("y", y, "float32", ["rows", out])
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # spinning ends with the run, so that the next contender has the cores
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        g.save(path)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
