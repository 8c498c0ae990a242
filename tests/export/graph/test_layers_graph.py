"""layers.onnx: the model's own graph with more outputs, which the model itself does not have."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from packbert.model_export.artifact.batch import LAST, graph_outputs
from packbert.model_export.artifact.manifest import LAYERS, MODEL
from packbert.model_export.export import export
from tests.export.goldens import Artifact
from tests.paths import GOLDEN


def check(folder: Path, layers: int) -> None:
    model, further = (onnx.load(folder / name, load_external_data=False) for name in (MODEL, LAYERS))
    added = graph_outputs((LAST, *range(layers)))
    assert {one.name for one in further.graph.output[len(model.graph.output) :]} == added
    assert added.isdisjoint(one.name for one in model.graph.output)
    del further.graph.output[len(model.graph.output) :]
    offsets = further.graph.initializer.pop()
    assert (offsets.name, offsets.dims[0]) == ("hidden_offsets", layers + 1)
    assert further == model


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["bert", "albert", "sample"])
def test_it_is_the_model_with_the_states_as_outputs(
    name: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    artifact = exported(name, precision)
    check(artifact.folder, artifact.manifest.sizes["layers"])


def test_it_names_the_packed_weights_too(tmp_path: Path) -> None:
    manifest = export(GOLDEN / "bert", tmp_path, prepacked=True)
    check(tmp_path / "cpu", manifest.sizes["layers"])
    weights = onnx.load(tmp_path / "cpu" / LAYERS, load_external_data=False).graph.initializer
    assert any(entry.key.startswith("prepacked") for one in weights for entry in one.external_data)


def test_an_fp16_graph_gives_states_in_fp16(tmp_path: Path) -> None:
    export(GOLDEN / "bert", tmp_path, precision="fp16", device="cuda")
    graph = onnx.load(tmp_path / "cuda" / LAYERS, load_external_data=False).graph
    types = {one.name: one.type.tensor_type.elem_type for one in graph.output}
    assert (types["hidden.0"], types["hidden_offsets"]) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
