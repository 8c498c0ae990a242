"""The CUDA artifact without a GPU: inputs, refusals, and the results of its two graphs in plain operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, load

from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.artifact.manifest import (
    CUMULATIVE_LENGTHS,
    LAYERS,
    MODEL,
    PACKED_ROWS,
    PLAIN,
    PLAIN_LAYERS,
    Manifest,
)
from packbert.model_export.errors import ExportError, PrecisionError
from packbert.model_export.export import export
from packbert.model_export.graph.builder import GraphBuilder, Value
from packbert.model_export.verification.on_cpu import write_portable
from tests.paths import GOLDEN

BERT = GOLDEN / "bert"
OUTPUTS = frozenset({"cls", "pooler", "pair", "mean", "tokens", "top_logits", "top_ids", "log_sum_exp"})
PLAIN_INPUTS = ("slot_tokens", "token_slots", "segments", "query_chosen", "query_segments", "chosen_slots")
LAYOUTS = {"packed": CUMULATIVE_LENGTHS, "plain": PACKED_ROWS}
SPARSE = frozenset({"sparse_places", "sparse_logits"})


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("cuda") / request.param
    export(BERT, folder, precision=request.param, device="cuda")
    return folder / "cuda"


def golden() -> list[dict[str, Any]]:
    """Per sequence: ids, types, hidden, pooler, pair, masks, vocabulary."""
    stored = np.load(BERT / "expected.npz")
    count = 1 + max(int(name.split(".")[0]) for name in stored)
    return [{name.split(".")[1]: stored[name] for name in stored if name.startswith(f"{i}.")} for i in range(count)]


def open_graph(artifact: Path, graph: str, *, layers: bool = False) -> ort.InferenceSession:
    """The packed graph with its attention in plain operators, or the plain one as it is; or that of its `layers`."""
    plain, packed = (PLAIN_LAYERS, LAYERS) if layers else (PLAIN, MODEL)
    path = artifact / plain if graph == "plain" else write_portable(artifact / packed)
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_attention_is_packed_as_the_flash_kernel_expects(artifact: Path) -> None:
    graph = load(artifact / MODEL, load_external_data=False).graph
    layers = [node for node in graph.node if node.op_type == "PackedMultiHeadAttention"]
    assert len(layers) == 3
    for node in layers:  # Q, K and V separate and without bias
        assert [bool(name) for name in node.input] == [True, True, True, False, True, True]


def test_the_plain_graph_has_the_outputs_and_the_weights_of_the_packed_one(artifact: Path) -> None:
    packed, plain = (load(artifact / name, load_external_data=False).graph for name in (MODEL, PLAIN))
    assert list(plain.output) == list(packed.output)
    stored = [
        {one.name: [(entry.key, entry.value) for entry in one.external_data] for one in graph.initializer}
        for graph in (packed, plain)
    ]
    assert any(stored[1].values())
    assert {name: place for name, place in stored[1].items() if place} == {
        name: place for name, place in stored[0].items() if place
    }
    layouts = [{value.name for value in graph.input} for graph in (packed, plain)]
    assert layouts[0] - layouts[1] == {"token_offset", "cumulative_lengths"}
    assert layouts[1] - layouts[0] == {*PLAIN_INPUTS}


def test_an_export_measures_the_errors_of_the_plain_graph(artifact: Path) -> None:
    errors = Manifest.read(artifact).verification
    packed = {name for name in errors if not name.startswith("plain_")} - {"attention_max_abs_error"}
    assert {name for name in errors if name.startswith("plain_")} == {f"plain_{name}" for name in packed}
    assert errors["plain_cls_smallest_cosine"] > 0.9999


def test_a_plain_graph_that_mixes_sequences_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def separate_nothing(g: GraphBuilder, queries: Value, keys: Value) -> Value:  # noqa: ARG001
        return g.constant(np.float32(0))

    monkeypatch.setattr("packbert.model_export.graph.attention.separating_bias", separate_nothing)
    with pytest.raises(PrecisionError, match="does not compute the checkpoint's vectors"):
        export(BERT, tmp_path / "artifact", device="cuda")
    assert not list(tmp_path.rglob("*.onnx"))


def test_indices_are_int32_and_outputs_float32(artifact: Path) -> None:
    graph = load(artifact / "model.onnx", load_external_data=False).graph
    wide = {value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.INT64}
    assert wide == {"k", "target_pairs", "sparse_count"}  # required by TopK, GatherND and Loop
    ids = ("top_ids", "sparse_places")
    floats = {value.name: value.type.tensor_type.elem_type for value in graph.output if value.name not in ids}
    assert set(floats.values()) == {TensorProto.FLOAT}


def test_weights_of_an_fp16_artifact_take_half_the_space(artifact: Path) -> None:
    stored = {
        tensor.name: tensor.data_type
        for tensor in load(artifact / "model.onnx", load_external_data=False).graph.initializer
    }
    expected = TensorProto.FLOAT16 if artifact.parent.name == "fp16" else TensorProto.FLOAT
    assert stored["layers.0/attention/query/weight"] == stored["embeddings/word"] == expected
    assert stored["pooler/weight"] == TensorProto.FLOAT  # heads stay in fp32


@pytest.mark.parametrize("graph", LAYOUTS)
def test_the_results_are_those_of_transformers(artifact: Path, graph: str) -> None:
    known = golden()
    tokens = [
        Tokens(
            ids=one["ids"],
            types=one["types"],
            outputs=OUTPUTS | SPARSE,
            masks=tuple(sorted(set(one["masks"].tolist()))),
            top_k=3,
        )
        for one in known
    ]
    batch = pack(tokens, LAYOUTS[graph])
    session = open_graph(artifact, graph)
    names = sorted(batch.outputs)
    results = session.run(names, {one.name: batch.feeds[one.name] for one in session.get_inputs()})
    close = 1e-5 if artifact.parent.name == "fp32" else 3e-2
    for row, one in zip(split(batch, dict(zip(names, results, strict=True))), known, strict=True):
        np.testing.assert_allclose(row["cls"][0], one["hidden"][0], atol=close)
        np.testing.assert_allclose(row["mean"][0], one["hidden"].mean(axis=0), atol=close)
        np.testing.assert_allclose(row["tokens"].astype(np.float64), one["hidden"], atol=close)
        np.testing.assert_allclose(row["pooler"][0], one["pooler"], atol=close)
        np.testing.assert_allclose(row["pair"][0], one["pair"], atol=close)
        cosine = row["cls"][0] @ one["hidden"][0] / np.linalg.norm(row["cls"][0]) / np.linalg.norm(one["hidden"][0])
        assert cosine > 0.9999
        largest = dict(zip(row["sparse_places"][:, 1].tolist(), row["sparse_logits"].tolist(), strict=True))
        for logits_of_token in one["vocabulary"]:  # of some tokens: the maximum is not below them
            assert all(largest.get(i, 0.0) >= logit - 2 * close for i, logit in enumerate(logits_of_token.tolist()))
        logits = dict(zip(one["masks"].tolist(), one["vocabulary"], strict=True))
        for n, mask in enumerate(sorted(logits)):
            best = np.argsort(-logits[mask], kind="stable")[:3]
            if close < 1e-3:
                assert row["top_ids"][n].tolist() == best.tolist()
            np.testing.assert_allclose(row["top_logits"][n], logits[mask][row["top_ids"][n]], atol=close * 2)


@pytest.mark.parametrize("graph", LAYOUTS)
def test_the_attention_is_that_of_transformers(artifact: Path, graph: str) -> None:
    known = np.load(GOLDEN / "attention" / "bert.npz")
    ids, types, layers = known["3.ids"], known["3.types"], (2, 0)
    tokens = Tokens(ids=ids, types=types, outputs=frozenset({"attention"}), layers=layers)
    batch = pack([tokens], LAYOUTS[graph])
    session = open_graph(artifact, graph, layers=True)
    names = sorted(batch.outputs)
    results = session.run(names, {one.name: batch.feeds[one.name] for one in session.get_inputs()})
    states = split(batch, dict(zip(names, results, strict=True)))[0]["attention"]
    model = ort.InferenceSession(artifact / "attention.onnx", providers=["CPUExecutionProvider"])
    feeds = {"hidden.2": states[0], "hidden.0": states[1], "hidden.1": states[0, :1]}
    for found, layer in zip(model.run(["attention.2", "attention.0"], feeds), layers, strict=True):
        assert found.dtype == np.float32
        close = 1e-5 if artifact.parent.name == "fp32" else 2e-3
        np.testing.assert_allclose(found, known["3.attention"][layer], atol=close)


def test_token_offsets_list_the_tokens_of_a_padded_batch_before_its_padding() -> None:
    tokens = [
        Tokens(ids=np.zeros(n, np.int32), types=np.zeros(n, np.int32), outputs=frozenset({"cls"})) for n in (2, 3, 1)
    ]
    feeds = pack(tokens, CUMULATIVE_LENGTHS).feeds
    assert feeds["cumulative_lengths"].tolist() == [0, 2, 5, 6]
    assert feeds["token_offset"].tolist() == [[0, 1, 3], [4, 5, 6], [2, 7, 8]]
    assert feeds["token_offset"].dtype == feeds["cumulative_lengths"].dtype == np.int32


@pytest.mark.parametrize(("precision", "device"), [("fp16", "cpu"), ("int8", "cuda"), ("fp32", "tpu"), ("fp8", "cuda")])
def test_a_precision_without_kernels_on_a_device_is_refused(precision: str, device: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="choose one of: fp32 on cpu and cuda; bf16 on cpu; fp16 on cuda"):
        export(BERT, tmp_path / "artifact", precision=precision, device=device)
    assert not list(tmp_path.iterdir())


def test_one_folder_holds_an_artifact_for_each_device_and_no_second_one(tmp_path: Path) -> None:
    export(BERT, tmp_path / "both", device="cpu")
    export(BERT, tmp_path / "both", device="cuda", precision="fp16")
    assert sorted(entry.name for entry in (tmp_path / "both").iterdir()) == ["cpu", "cuda"]
    with pytest.raises(ExportError, match="already holds an artifact"):
        export(BERT, tmp_path / "both", device="cuda")
