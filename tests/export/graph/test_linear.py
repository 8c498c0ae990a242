"""The codes of int8 activations: no number is off by more than half a step, whatever else its row holds."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

from model_export.graph.builder import GraphBuilder
from model_export.graph.linear import quantize_above

LOWEST = -0.17


def test_gelus_results_are_off_by_at_most_half_a_step_even_in_rows_close_to_zero(tmp_path: Path) -> None:
    rows = np.array(
        [[LOWEST, 0.0, 3.0, 0.5], [LOWEST, -0.1, -0.01, 0.0], [LOWEST, 0.0, 0.001, -0.05], [0.0] * 4], np.float32
    )
    g = GraphBuilder()
    x = g.input("x", "float32", ["rows", 4])
    codes = quantize_above(g, x, g.op("ReduceMax", x, g.constant(np.array([-1], np.int64)), keepdims=1), LOWEST)
    counted = g.op("Sub", g.op("Cast", codes.codes, to=1), g.constant(np.float32(codes.zero_point)))
    g.output("decoded", g.op("Mul", counted, codes.scale), "float32", ["rows", 4])
    g.output("step", codes.scale, "float32", ["rows", 1])
    g.save(tmp_path / "model.onnx")
    decoded, step = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"]).run(
        None, {"x": rows}
    )
    assert (np.abs(decoded - rows) <= 0.501 * step).all()
    assert (step <= 3.0 / 200).all()
