"""int8: codes are off by at most half a step, whatever else a row holds, and products of codes are exact."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.graph.linear import Quantized, channel_scales, multiply, quantize_above
from packbert.model_export.lazy_weight import LazyWeight
from packbert.service.engine.session import CpuSession
from tests.export.goldens import open_session

LOWEST = -0.17


def test_gelus_results_are_off_by_half_a_step_near_zero_too(tmp_path: Path) -> None:
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
    decoded, step = open_session(tmp_path / "model.onnx").run(None, {"x": rows})
    assert (np.abs(decoded - rows) <= 0.501 * step).all()
    assert (step <= 3.0 / 200).all()


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("kind", ["largest", "smallest", "random"])
def test_products_of_codes_are_exact_on_every_processor(kind: str, rows: int, tmp_path: Path) -> None:
    """Where pairs are added in 16 bits, 255 x 127 + 255 x 127 is 32767."""
    random = np.random.default_rng(3)
    codes, weight = random.integers(0, 256, (rows, 768)), random.normal(size=(48, 768)).astype(np.float32)
    if kind != "random":
        codes[:], weight[:] = 255, 1.0 if kind == "largest" else -1.0
    g = GraphBuilder()
    x = g.op("Cast", g.input("x", "int32", ["rows", 768]), to=TensorProto.UINT8)
    quantized = Quantized(codes=x, scale=g.constant(np.float32(1)), zero_point=128)
    stored = LazyWeight((48, 768), lambda: weight)
    g.output("products", multiply(g, quantized, stored), "float32", ["rows", 48])
    g.save(tmp_path / "model.onnx")
    session = CpuSession(tmp_path / "model.onnx", threads=1)
    (products,) = session.run(["products"], {"x": codes.astype(np.int32)})
    scales = channel_scales(weight)
    sums = (codes - 128) @ np.rint(weight / scales[:, None]).astype(np.int64).T
    assert np.array_equal(products, sums.astype(np.float32) * scales)


def test_no_pair_of_neighbouring_weights_can_exceed_16_bits() -> None:
    random = np.random.default_rng(4)
    for width in (1, 2, 7, 768):
        weight = random.standard_t(3, (500, width)).astype(np.float32)
        codes = np.rint(weight / channel_scales(weight)[:, None])
        assert np.abs(codes).max() <= 127
        assert np.abs(codes[:, : width // 2 * 2].reshape(500, -1, 2).sum(axis=2)).max(initial=0) * 255 <= 32767
