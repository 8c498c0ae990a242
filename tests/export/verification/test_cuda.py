"""The CUDA artifact without a GPU: operators, inputs, refusals, and results with attention in plain operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, load

from model_export.artifact.batch import CUMULATIVE_LENGTHS, Tokens, pack, split
from model_export.errors import ExportError
from model_export.export import export
from model_export.verification.cuda_on_cpu import write_portable
from tests.paths import GOLDEN

BERT = GOLDEN / "bert"
KERNELS = {  # operators with CUDA kernels in float and float16, by ONNX Runtime's documentation
    *(
        "Add",
        "Cast",
        "Gather",
        "GatherND",
        "Gemm",
        "Identity",
        "LayerNormalization",
        "LogSoftmax",
        "MatMul",
        "Reshape",
        "Softmax",
        "Squeeze",
        "Sub",
    ),
    *("Tanh", "TopK", "Transpose", "Unsqueeze", "GatherElements"),
    *("Concat", "Log", "Loop", "Max", "Mul", "NonZero", "ReduceMax", "Relu"),
    *("BiasGelu", "EmbedLayerNormalization", "FusedMatMul", "PackedMultiHeadAttention", "SkipLayerNormalization"),
}
OUTPUTS = frozenset({"cls", "pooler", "pair", "mean", "tokens", "top_logits", "top_ids", "log_sum_exp"})
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


def test_every_node_has_a_kernel_on_the_gpu(artifact: Path) -> None:
    attention = load(artifact / "attention.onnx", load_external_data=False).graph
    graph = load(artifact / "model.onnx", load_external_data=False).graph
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.name == "body"]
    kinds = {node.op_type for part in (graph, attention, *bodies) for node in part.node}
    assert kinds <= KERNELS, f"no CUDA kernel is known for {kinds - KERNELS}"
    layers = [node for node in graph.node if node.op_type == "PackedMultiHeadAttention"]
    assert len(layers) == 3
    for node in layers:  # Q, K and V separate and without bias, as the variable-length flash kernel expects
        assert [bool(name) for name in node.input] == [True, True, True, False, True, True]


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


def test_the_results_are_those_of_transformers(artifact: Path) -> None:
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
    batch = pack(tokens, CUMULATIVE_LENGTHS)
    session = ort.InferenceSession(write_portable(artifact / "model.onnx"), providers=["CPUExecutionProvider"])
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


def test_the_attention_is_that_of_transformers(artifact: Path) -> None:
    known = np.load(GOLDEN / "attention" / "bert.npz")
    ids, types, layers = known["3.ids"], known["3.types"], (2, 0)
    tokens = Tokens(ids=ids, types=types, outputs=frozenset({"attention"}), layers=layers)
    batch = pack([tokens], CUMULATIVE_LENGTHS)
    session = ort.InferenceSession(write_portable(artifact / "layers.onnx"), providers=["CPUExecutionProvider"])
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
