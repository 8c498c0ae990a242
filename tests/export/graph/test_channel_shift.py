"""int8 counts from each channel's centre: in exact arithmetic that changes nothing, and in int8 a channel far off zero costs no precision."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file

from model_export.artifact.batch import PACKED_ROWS, Tokens, pack
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.families import NamedWeights, describe, family_of
from model_export.export import export
from model_export.graph.attention import LAYOUTS
from model_export.graph.builder import GraphBuilder
from model_export.graph.channel_shift import ChannelShift
from model_export.graph.encoder import Encoder
from model_export.graph.linear import CpuLinear
from model_export.verification.reference import Reference
from tests.export.goldens import GOLDEN, expected

ROUNDING = 2e-5
CHANNEL, FAR_OFF = 5, 40.0
SMALLEST_COSINE = 0.999


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "ernie", "electra"])
def test_counting_from_the_centre_changes_no_answer(name: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(GOLDEN / name)
    family, architecture = family_of(checkpoint.config), describe(checkpoint.config)
    parts, graph = NamedWeights(checkpoint, family), GraphBuilder()
    centres = ChannelShift(Reference(architecture, family, parts).centres, 2 * architecture.layers)
    attention = LAYOUTS[PACKED_ROWS](graph, architecture.heads, architecture.hidden)
    hidden = Encoder(graph, architecture, parts, CpuLinear(), attention, centres).build()
    graph.output("hidden", hidden, "float32", ["chosen", architecture.hidden])
    graph.save(tmp_path / "model.onnx", producer_version="test", written=lambda _: None)
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    sequences = expected(name)
    batch = pack([Tokens(ids=one["ids"], types=one["types"], outputs=frozenset({"mean"})) for one in sequences])
    got = session.run(["hidden"], {one.name: batch.feeds[one.name] for one in session.get_inputs()})[0]
    assert np.abs(got - np.concatenate([one["hidden"] for one in sequences])).max() <= ROUNDING


def moved(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model: one channel of every norm but the last moved, and every bias behind it made up for that."""
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


def test_a_channel_far_off_zero_does_not_make_int8_coarse(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    weights = moved(load_file(GOLDEN / "bert" / "model.safetensors"))
    save_file(weights, tmp_path / "checkpoint" / "model.safetensors", metadata={"format": "pt"})
    manifest = export(tmp_path / "checkpoint", tmp_path / "artifact", precision="int8")
    assert manifest.verification["cls_smallest_cosine"] >= SMALLEST_COSINE
    before = export(GOLDEN / "bert", tmp_path / "before")
    assert np.allclose(manifest.canary.cls, before.canary.cls, atol=1e-3), "the two are one model"
