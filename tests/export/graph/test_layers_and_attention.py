"""layers.onnx is the graph of the model with more outputs; attention.onnx computes probabilities of its own weights."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.artifact.manifest import ATTENTION, LAYERS, MODEL
from packbert.model_export.export import export
from tests.export.goldens import Artifact, open_session
from tests.paths import GOLDEN

AFTER_SOFTMAX = 3  # mode of the operator's fourth output
EACH = [(name, precision) for name in ("bert", "albert", "sample") for precision in ("fp32", "int8")]


def encoder_with_probabilities(artifact: Artifact) -> tuple[ort.InferenceSession, list[str]]:
    """The encoder with the probabilities of every layer as further outputs, and their names."""
    model, names = onnx.load(artifact.folder / LAYERS, load_external_data=False), list[str]()
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.output.extend(["", "", f"probabilities.{len(names)}"])
            node.attribute.append(onnx.helper.make_attribute("qk_matmul_output_mode", AFTER_SOFTMAX))
        elif node.op_type != "Softmax" or "attention" not in node.name:
            continue
        names.append(node.output[-1])
        value = onnx.helper.make_tensor_value_info(names[-1], onnx.TensorProto.FLOAT, None)
        model.graph.output.append(value)
    path = artifact.folder / "with_probabilities.onnx"
    onnx.save(model, path)
    session = open_session(path)
    path.unlink()
    return session, names


@pytest.mark.parametrize(("name", "precision"), EACH)
def test_the_probabilities_are_those_that_the_encoder_uses(
    name: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    """Of [CLS] in the last layer, whose queries are the selected tokens alone."""
    artifact = exported(name, precision)
    sizes = artifact.manifest.sizes
    layers = tuple(range(sizes["layers"]))
    ids = np.random.default_rng(3).integers(5, sizes["vocabulary"], 23, dtype=np.int32)
    tokens = Tokens(ids=ids, types=np.zeros(23, np.int32), outputs=frozenset({"attention"}), layers=layers)
    encoder, names = encoder_with_probabilities(artifact)
    batch = pack([tokens])
    wanted = sorted(batch.outputs)
    feeds = {one.name: batch.feeds[one.name] for one in encoder.get_inputs()}
    results = encoder.run([*wanted, *names], feeds)
    states = split(batch, dict(zip(wanted, results, strict=False)))[0]["attention"]
    model = open_session(artifact.folder / ATTENTION)
    found = model.run(None, {f"hidden.{layer}": one for layer, one in zip(layers, states, strict=True)})
    used = results[len(wanted) :]
    assert len(found) == len(used) == len(layers)
    for layer, (got, row) in enumerate(zip(found, used, strict=True)):
        queries = 1 if layer == layers[-1] else 23
        np.testing.assert_allclose(got[:, :queries], row[0, :, :queries, :23], atol=1e-6, err_msg=f"layer {layer}")
        np.testing.assert_allclose(got.sum(axis=-1), 1, atol=1e-5)


def initializers(model: Path) -> Sequence[onnx.TensorProto]:
    found: Sequence[onnx.TensorProto] = onnx.load(model, load_external_data=False).graph.initializer
    return found


def check_weights(folder: Path, graph: str) -> None:
    """The large weights of the graph are those of the encoder, with their packed forms."""
    of_encoder = {one.name: one for one in initializers(folder / MODEL)}
    shared = [one for one in initializers(folder / graph) if one.external_data and one.name != "hidden_offsets"]
    assert any(one.name.endswith("key_value/weight") for one in shared)
    assert [one.name for one in shared if one != of_encoder[one.name]] == []


@pytest.mark.parametrize("graph", [ATTENTION, LAYERS])
@pytest.mark.parametrize(("name", "precision"), EACH)
def test_its_weights_are_those_of_the_encoder_in_the_same_file(
    name: str, precision: str, graph: str, exported: Callable[..., Artifact]
) -> None:
    artifact = exported(name, precision)
    check_weights(artifact.folder, graph)
    assert (artifact.folder / graph).stat().st_size <= 1.5 * (artifact.folder / MODEL).stat().st_size
    assert sorted(file.name for file in artifact.folder.iterdir()) == sorted(
        ["manifest.json", *artifact.manifest.files]
    )


def test_the_graph_of_layers_names_the_packed_weights_too(tmp_path: Path) -> None:
    export(GOLDEN / "bert", tmp_path, prepacked=True)
    check_weights(tmp_path / "cpu", LAYERS)
    entries = [entry for one in initializers(tmp_path / "cpu" / LAYERS) for entry in one.external_data]
    assert any(entry.key.startswith("prepacked") for entry in entries)


def test_an_fp16_graph_gives_states_in_fp16(tmp_path: Path) -> None:
    export(GOLDEN / "bert", tmp_path, precision="fp16", device="cuda")
    graph = onnx.load(tmp_path / "cuda" / LAYERS, load_external_data=False).graph
    types = {one.name: one.type.tensor_type.elem_type for one in graph.output}
    assert (types["hidden.0"], types["hidden_offsets"]) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
