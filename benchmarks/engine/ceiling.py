"""The ceiling: how fast ONNX Runtime multiplies matrices of the model's shapes on this machine."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks.engine.contenders.turns import clock_for
from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.graph.linear import QMAX, ZERO_POINT
from packbert.model_export.lazy_weight import LazyWeight

IN_A_ROW = 4  # products of a per-core session that are timed together, so that starting a thread's work does not count


def silence_warnings() -> None:
    """Makes ONNX Runtime log errors only: its optimizer warns of each initializer that it removes."""
    ort.set_default_logger_severity(3)


def product_session(precision: str, width: int, out: int, threads: int) -> ort.InferenceSession:
    """A session with one product, [rows, width] x [width, out], and ONNX Runtime's own thread settings (it spins)."""
    g, random = GraphBuilder(), np.random.default_rng(6)
    if precision == "fp32":
        x = g.input("x", "float32", ["rows", width])
        y = g.op(
            "MatMul",
            x,
            g.weight("w", LazyWeight((width, out), lambda: random.standard_normal((width, out), np.float32))),
        )
    else:
        x = g.input("x", "float32", ["rows", width])
        x.dtype = TensorProto.UINT8
        w = g.weight(
            "w", LazyWeight((width, out), lambda: random.integers(-127, 128, (width, out), np.int8)), TensorProto.INT8
        )
        scale = g.weight("scale", LazyWeight((out,), lambda: random.random(out, np.float32)))
        y = g.contrib(
            "MatMulIntegerToFloat", x, w, g.constant(np.float32(1 / QMAX)), scale, g.constant(np.uint8(ZERO_POINT))
        )
    g.output("y", y, "float32", ["rows", out])
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # spinning ends with the run, so that the next contender has the cores
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        g.save(path)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@dataclass(slots=True)
class Ceiling:
    """The linear layers of a BERT of one size as bare products.

    One session runs on all threads, or one on each core with its share of the rows; the faster counts.
    """

    config: dict[str, int]
    precision: str
    threads: int
    _together: dict[tuple[int, int], ort.InferenceSession] = field(init=False, repr=False)
    _alone: dict[tuple[int, int], ort.InferenceSession] = field(init=False, repr=False)
    _pool: ThreadPoolExecutor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._together = {shape: product_session(self.precision, *shape, self.threads) for shape in self.products()}
        self._alone = {shape: product_session(self.precision, *shape, 1) for shape in self.products()}
        self._pool = ThreadPoolExecutor(self.threads)

    def products(self) -> dict[tuple[int, int], int]:
        """(width, out) -> number of such products in the model."""
        hidden, inner, layers = (self.config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
        return {(hidden, hidden): 4 * layers, (hidden, inner): layers, (inner, hidden): layers}

    def operations(self, rows: int) -> float:
        return float(sum(2 * rows * width * out * count for (width, out), count in self.products().items()))

    def seconds(self, rows: int, *, repeats: int = 3) -> float:
        """Seconds of all the model's products on `rows` token rows, best of `repeats`."""
        total, clock = 0.0, clock_for(self.threads)
        for (width, out), count in self.products().items():
            x = np.ones((rows, width), np.float32 if self.precision == "fp32" else np.uint8)
            share = x[: -(-rows // self.threads)]
            together = best(partial(self._together[width, out].run, None, {"x": x}), repeats, clock)
            side_by_side = best(partial(self._on_each_core, self._alone[width, out], share), repeats, clock)
            total += count * min(together, side_by_side / IN_A_ROW)
        return total

    def _on_each_core(self, session: ort.InferenceSession, x: NDArray[np.generic]) -> None:
        def several() -> None:
            for _ in range(IN_A_ROW):
                session.run(None, {"x": x})

        for task in [self._pool.submit(several) for _ in range(self.threads)]:
            task.result()


def best(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of `repeats` calls."""
    taken = []
    for _ in range(repeats):
        started = clock()
        call()
        taken.append(clock() - started)
    return min(taken)
