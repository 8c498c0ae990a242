"""The CUDA artifact without a GPU: its graph, its inputs, refusals, and its results in operators that a CPU has."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, load

from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.artifact.manifest import ATTENTION, CUMULATIVE_LENGTHS, LAYERS, MODEL, PACKED_ROWS, Manifest
from packbert.model_export.build import attention_for
from packbert.model_export.errors import ExportError, PrecisionError
from packbert.model_export.export import export
from packbert.model_export.families import architecture_of
from packbert.model_export.graph.builder import GraphBuilder, Value
from packbert.model_export.verification.on_cpu import write_portable
from tests.export.goldens import expected, open_session, run
from tests.paths import GOLDEN

BERT = GOLDEN / "bert"
OUTPUTS = frozenset({"cls", "pooler", "pair", "mean", "tokens", "top_logits", "top_ids", "log_sum_exp"})
PACKED_INPUTS = {"token_offset", "cumulative_lengths"}
ROWS_INPUTS = {"slot_tokens", "token_slots", "segments", "query_chosen", "query_segments", "chosen_slots"}
SPARSE = frozenset({"sparse_places", "sparse_logits"})


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("cuda") / request.param
    export(BERT, folder, precision=request.param, device="cuda")
    return folder / "cuda"


def open_graph(model: Path) -> ort.InferenceSession:
    """The graph with its packed attention, if it has one, in plain operators."""
    return open_session(write_portable(model))


def attention(artifact: Path, states: np.ndarray, layers: Sequence[int]) -> list[np.ndarray]:
    """The probabilities of the layers, of their `states`."""
    model = open_session(artifact / ATTENTION)
    feeds = {f"hidden.{layer}": state for layer, state in zip(layers, states, strict=True)}
    feeds |= {one.name: states[0, :1] for one in model.get_inputs() if one.name not in feeds}
    return list(model.run([f"attention.{layer}" for layer in layers], feeds))


def answers(artifact: Path, lengths: tuple[int, ...] = (5, 40, 17)) -> list[dict[str, Any]]:
    """The rows of texts of these lengths, with the attention of the first one."""
    texts = [np.arange(7, 7 + length, dtype=np.int32) for length in lengths]
    asked = partial(Tokens, outputs=OUTPUTS | SPARSE, masks=(1,), top_k=3)
    tokens = [asked(ids=ids, types=np.zeros_like(ids)) for ids in texts]
    states = Tokens(ids=texts[0], types=np.zeros_like(texts[0]), outputs=frozenset({"attention"}), layers=(0, 1, 2))
    layout = Manifest.read(artifact).layout
    rows = run(artifact / MODEL, tokens, open_graph, layout=layout)
    (further,) = run(artifact / LAYERS, [states], open_graph, layout=layout)
    return [*rows, {"attention": np.stack(attention(artifact, further["attention"], (0, 1, 2)))}]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_heads_without_a_packed_kernel_give_the_cpus_answers_in_rows(
    narrow_heads: Path, tmp_path: Path, precision: str
) -> None:
    for device, of_device in (("cpu", "fp32"), ("cuda", precision)):
        export(narrow_heads, tmp_path / "artifact", precision=of_device, device=device)
    cpu, cuda = (tmp_path / "artifact" / device for device in ("cpu", "cuda"))
    assert Manifest.read(cuda).layout == PACKED_ROWS
    graph = load(cuda / MODEL, load_external_data=False).graph
    assert "PackedMultiHeadAttention" not in {node.op_type for node in graph.node}
    assert {value.name for value in graph.input} >= ROWS_INPUTS
    close = 1e-5 if precision == "fp32" else 3e-2
    for found, wanted in zip(answers(cuda), answers(cpu), strict=True):
        for name in wanted.keys() - {"top_ids", "sparse_places", "sparse_logits"}:
            np.testing.assert_allclose(found[name].astype(np.float64), wanted[name], atol=close, err_msg=name)


@pytest.mark.parametrize(
    ("hidden", "heads", "packed"), [(768, 12, True), (512, 2, True), (312, 12, False), (1056, 4, False)]
)
def test_the_size_of_the_heads_decides_the_attention_for_cuda(hidden: int, heads: int, packed: bool) -> None:
    config = json.loads((BERT / "config.json").read_text("utf-8"))
    sizes = architecture_of(config | {"hidden_size": hidden, "num_attention_heads": heads})
    for precision in ("fp32", "fp16"):
        chosen = attention_for(precision, "cuda", sizes)
        assert chosen.layout == (CUMULATIVE_LENGTHS if packed else PACKED_ROWS)
    assert attention_for("fp32", "cpu", sizes).layout == PACKED_ROWS


@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-5), ("fp16", 2e-2)])
def test_attention_that_reads_distances_is_computed_in_rows(tmp_path: Path, precision: str, close: float) -> None:
    checkpoint = GOLDEN / "deberta-v2-convolution"
    manifest = export(checkpoint, tmp_path / "artifact", precision=precision, device="cuda")
    assert manifest.layout == PACKED_ROWS
    for output in ("tokens", "layer_tokens", "fill_mask", "attention"):
        assert manifest.verification[f"{output}_max_abs_error"] < close, output


def test_the_graph_is_packed_for_the_flash_kernel_with_weights_of_its_precision(artifact: Path) -> None:
    graph = load(artifact / MODEL, load_external_data=False).graph
    layers = [node for node in graph.node if node.op_type == "PackedMultiHeadAttention"]
    named = [[bool(name) for name in node.input] for node in layers]  # Q, K and V separate and without bias
    assert named == [[True, True, True, False, True, True]] * 3
    inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    assert inputs.keys() >= PACKED_INPUTS
    assert not inputs.keys() & ROWS_INPUTS
    wide = {name for name, kind in inputs.items() if kind == TensorProto.INT64}
    assert wide == {"k", "target_pairs", "sparse_count"}  # required by TopK, GatherND and Loop
    outputs = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    floats = {kind for name, kind in outputs.items() if name not in ("top_ids", "sparse_places")}
    assert floats == {TensorProto.FLOAT}
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    precision = TensorProto.FLOAT16 if artifact.parent.name == "fp16" else TensorProto.FLOAT
    assert stored["layers.0/attention/query/weight"] == stored["embeddings/word"] == precision
    assert stored["pooler/weight"] == TensorProto.FLOAT  # heads stay in fp32


def test_a_graph_that_mixes_sequences_is_not_written(
    narrow_heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def separate_nothing(g: GraphBuilder, queries: Value, keys: Value) -> Value:  # noqa: ARG001
        return g.constant(np.float32(0))

    monkeypatch.setattr("packbert.model_export.graph.attention.separating_bias", separate_nothing)
    with pytest.raises(PrecisionError, match="does not compute the checkpoint's vectors"):
        export(narrow_heads, tmp_path / "artifact", device="cuda")
    assert not list(tmp_path.rglob("*.onnx"))


def test_the_results_are_those_of_transformers(artifact: Path) -> None:
    known = expected("bert")
    masks = [tuple(sorted(set(one["masks"].tolist()))) for one in known]
    tokens = [
        Tokens(ids=one["ids"], types=one["types"], outputs=OUTPUTS | SPARSE, masks=own, top_k=3)
        for one, own in zip(known, masks, strict=True)
    ]
    close = 1e-5 if artifact.parent.name == "fp32" else 3e-2
    for row, one in zip(run(artifact / MODEL, tokens, open_graph, layout=CUMULATIVE_LENGTHS), known, strict=True):
        hidden = one["hidden"]
        wanted = {"cls": hidden[:1], "mean": hidden.mean(axis=0)[None], "tokens": hidden}
        for name, want in (wanted | {"pooler": one["pooler"][None], "pair": one["pair"][None]}).items():
            np.testing.assert_allclose(row[name].astype(np.float64), want, atol=close, err_msg=name)
        cosine = row["cls"][0] @ hidden[0] / np.linalg.norm(row["cls"][0]) / np.linalg.norm(hidden[0])
        assert cosine > 0.9999
        largest = dict(zip(row["sparse_places"][:, 1].tolist(), row["sparse_logits"].tolist(), strict=True))
        for logits_of_token in one["vocabulary"]:  # of some tokens: the maximum is not below them
            assert all(largest.get(i, 0.0) >= logit - 2 * close for i, logit in enumerate(logits_of_token.tolist()))
        logits = dict(zip(one["masks"].tolist(), one["vocabulary"], strict=True))
        for n, mask in enumerate(sorted(logits)):
            if close < 1e-3:
                assert row["top_ids"][n].tolist() == np.argsort(-logits[mask], kind="stable")[:3].tolist()
            np.testing.assert_allclose(row["top_logits"][n], logits[mask][row["top_ids"][n]], atol=close * 2)


def test_the_attention_is_that_of_transformers(artifact: Path) -> None:
    known, layers = np.load(GOLDEN / "attention" / "bert.npz"), (2, 0)
    asked = Tokens(ids=known["3.ids"], types=known["3.types"], outputs=frozenset({"attention"}), layers=layers)
    (row,) = run(artifact / LAYERS, [asked], open_graph, layout=CUMULATIVE_LENGTHS)
    close = 1e-5 if artifact.parent.name == "fp32" else 2e-3
    for found, layer in zip(attention(artifact, row["attention"], layers), layers, strict=True):
        assert found.dtype == np.float32
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
