"""Channel shift and balance change nothing in exact arithmetic; in int8 no channel alone costs precision."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.checkpoint import Checkpoint, NamedWeights
from packbert.model_export.export import export
from packbert.model_export.graph.attention import PackedRows
from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.graph.channel_shift import ChannelShift, split_channels
from packbert.model_export.graph.encoder import Encoder
from packbert.model_export.graph.linear import CpuLinear, channel_scales
from packbert.model_export.lazy_weight import LazyWeight
from packbert.model_export.verification.reference import Reference
from tests.export.goldens import expected, open_session
from tests.paths import GOLDEN

ROUNDING = 2e-5
CHANNEL, FAR_OFF = 5, 40.0
SMALLEST_COSINE = 0.999


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "ernie", "electra"])
def test_channel_shift_balance_and_split_change_no_answer_in_fp32(name: str, tmp_path: Path) -> None:
    parts, graph = NamedWeights(Checkpoint(GOLDEN / name)), GraphBuilder()
    architecture = parts.architecture
    reference = Reference(parts)
    assert len(reference.channel_balances()) == 2 * architecture.layers  # also before the offsets are asked for
    shift = ChannelShift(reference.channel_offsets, reference.channel_balances, 2 * architecture.layers)
    linear = CpuLinear(graph)
    states = Encoder(graph, parts, linear, PackedRows(linear, parts), shift).build()
    graph.output("hidden", states, "float32", ["chosen", architecture.hidden])
    graph.save(tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    sequences = expected(name)
    batch = pack([Tokens(ids=one["ids"], types=one["types"], outputs=frozenset({"mean"})) for one in sequences])
    got = session.run(["hidden"], {one.name: batch.feeds[one.name] for one in session.get_inputs()})[0]
    assert np.abs(got - np.concatenate([one["hidden"] for one in sequences])).max() <= ROUNDING


def move_channel(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model with one channel of each norm but the last moved, and the biases after it compensated."""
    names = ["bert.embeddings.LayerNorm"]
    for i in range(3):
        layer = f"bert.encoder.layer.{i}"
        readers = {names[-1]: [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]}
        names += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        readers[names[-2]] = [f"{layer}.intermediate.dense"]
        for norm, products in readers.items():
            weights[f"{norm}.bias"][CHANNEL] += FAR_OFF
            for product in products:
                weights[f"{product}.bias"] -= FAR_OFF * weights[f"{product}.weight"][:, CHANNEL]
        weights[f"{layer}.attention.output.dense.bias"][CHANNEL] -= FAR_OFF
        weights[f"{layer}.output.dense.bias"][CHANNEL] -= FAR_OFF
    return weights


def test_a_channel_far_from_zero_costs_int8_no_precision(tmp_path: Path, exported: Callable) -> None:
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    weights = move_channel(load_file(GOLDEN / "bert" / "model.safetensors"))
    save_file(weights, tmp_path / "checkpoint" / "model.safetensors", metadata={"format": "pt"})
    manifest = export(tmp_path / "checkpoint", tmp_path / "artifact", precision="int8")
    assert manifest.verification["cls_smallest_cosine"] >= SMALLEST_COSINE
    before = exported("bert").manifest
    assert np.allclose(manifest.canary.cls, before.canary.cls, atol=1e-3), "the two are one model"


def test_inner_channels_with_large_weights_do_not_coarsen_other_codes() -> None:
    random = np.random.default_rng(5)
    weight, inner = random.normal(size=(48, 480)).astype(np.float32), random.normal(size=(480, 1)).astype(np.float32)
    weight[:, [3, 77, 400]] *= 20
    reader, bias = LazyWeight((48, 480), lambda: weight), LazyWeight((480,), lambda: inner[:, 0])
    shift = ChannelShift(list, list, 2)
    split = shift.split_inputs(reader)
    twice, _ = shift.split_results((LazyWeight((480, 1), lambda: inner), bias), reader)
    assert split.shape == split.load().shape == (48, 496)
    assert twice.shape == twice.load().shape == (496, 1)
    assert np.allclose(split.load() @ twice.load(), weight @ inner, atol=1e-4)
    assert channel_scales(split.load()).mean() < 0.7 * channel_scales(weight).mean()


def test_a_split_channel_is_not_rounded_more_coarsely() -> None:
    weight = np.random.default_rng(6).normal(size=(64, 96)).astype(np.float32)
    split = ChannelShift(list, list, 2).split_inputs(LazyWeight(weight.shape, lambda: weight)).load()
    scales = channel_scales(split)[:, None]
    together = np.rint(split / scales) @ np.eye(96)[split_channels(weight)]  # the codes of both halves
    assert np.abs(together - weight / scales).max() <= 0.51
