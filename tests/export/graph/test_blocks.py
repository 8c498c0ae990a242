"""Attention by distance (rotary, windows, ALiBi), on texts longer than a band and a block of queries."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from safetensors.numpy import save_file

from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import PrecisionError
from packbert.model_export.families import FAMILIES

LENGTHS = (600, 300, 40, 17, 260, 150, 3, 64)
GLOBAL, LOCAL = "full_attention", "sliding_attention"
JINA, JINA_OF_CODE = FAMILIES["jina_bert"].parts, FAMILIES["jina_bert_code"].parts
LAST_GLOBAL, LAST_LOCAL = [GLOBAL, LOCAL, LOCAL, GLOBAL], [LOCAL, GLOBAL, LOCAL]  # the kinds of the layers


def checkpoint(folder: Path, *, heads: int, window: int, kinds: list[str], hidden: int = 128) -> Path:
    """A ModernBERT with random weights."""
    random, inner = np.random.default_rng(4), 96
    config = {
        "model_type": "modernbert",
        "vocab_size": 50,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": heads,
        "max_position_embeddings": 1024,
        "local_attention": window,
        "layer_types": kinds,
    }
    shapes = {"embeddings.tok_embeddings": (50, hidden), "embeddings.norm": (hidden,), "final_norm": (hidden,)}
    for i in range(len(kinds)):
        shapes |= {f"layers.{i}.attn_norm": (hidden,)} if i else {}
        shapes |= {f"layers.{i}.attn.Wqkv": (3 * hidden, hidden), f"layers.{i}.attn.Wo": (hidden, hidden)}
        shapes |= {f"layers.{i}.mlp_norm": (hidden,), f"layers.{i}.mlp.Wi": (2 * inner, hidden)}
        shapes |= {f"layers.{i}.mlp.Wo": (hidden, inner)}
    spread = 1.5 / hidden**0.5
    weights = {f"{name}.weight": random.normal(0, spread, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir()
    save_file({name: one + (one.ndim == 1) for name, one in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def checkpoint_of_jina(folder: Path, names: Mapping[str, str], heads: int) -> Path:
    """A JinaBERT with random weights; `names` are its parts."""
    random, hidden, inner = np.random.default_rng(6), 96, 64
    config = {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "vocab_size": 50,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "max_position_embeddings": 1024,
    }
    shapes = {"word": (50, hidden), "segment": (2, hidden), "gated": (2 * inner, hidden), "output": (hidden, inner)}
    weights = {}
    for part, name in names.items():
        shape = shapes.get(part, (hidden,) if part.endswith("norm") else (hidden, hidden))
        for stored in {name.format(i=i) for i in range(3)}:
            weights[f"{stored}.weight"] = random.normal(float(part.endswith("norm")), 0.15, shape).astype(np.float32)
            if part not in ("word", "segment", "gated"):
                weights[f"{stored}.bias"] = random.normal(0, 0.15, shape[:1]).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("heads", "window", "hidden", "kinds"),
    [
        (2, 128, 256, LAST_GLOBAL),
        (16, 20, 128, LAST_GLOBAL),
        (2, 300, 128, LAST_GLOBAL),
        (2, 128, 128, LAST_LOCAL),
        (16, 20, 128, LAST_LOCAL),
    ],
)
def test_long_texts_have_the_references_states_alone_and_in_a_batch(
    heads: int, window: int, hidden: int, kinds: list[str], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "checkpoint", heads=heads, window=window, hidden=hidden, kinds=kinds)
    check_long_texts(folder, tmp_path)


@pytest.mark.parametrize(("names", "heads"), [(JINA, 4), (JINA, 12), (JINA_OF_CODE, 12)])
def test_long_texts_with_a_bias_by_distance_have_them_too(names: Mapping[str, str], heads: int, tmp_path: Path) -> None:
    check_long_texts(checkpoint_of_jina(tmp_path / "checkpoint", names, heads), tmp_path)


def check_long_texts(folder: Path, tmp_path: Path) -> None:
    built = build_graph(Checkpoint(folder), "fp32", "cpu")
    built.graph.save(tmp_path / MODEL)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(tmp_path / MODEL, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(5)
    ids = [random.integers(0, 50, length, dtype=np.int32) for length in LENGTHS]
    texts = [Tokens(ids=one, types=np.zeros_like(one), outputs=frozenset({"tokens", "cls"})) for one in ids]

    def run(batch: list[Tokens]) -> list[dict[str, np.ndarray]]:
        packed = pack(batch, built.layout)
        feeds = {one.name: packed.feeds[one.name] for one in session.get_inputs()}
        return split(packed, dict(zip(["cls", "tokens"], session.run(["cls", "tokens"], feeds), strict=True)))

    together, reference = run(texts), built.reference.hidden_states(ids)
    for text, row, expected in zip(texts, together, reference, strict=True):
        assert np.abs(row["tokens"] - expected).max() < 1e-4, len(text)
        (alone,) = run([text])
        assert all(np.array_equal(alone[name], row[name]) for name in row), len(text)


def test_bf16_is_refused_by_the_name_of_the_family(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", heads=2, window=128, kinds=[GLOBAL, LOCAL])
    with pytest.raises(PrecisionError, match="bf16 is not built for family modernbert: choose fp32 or int8"):
        build_graph(Checkpoint(folder), "bf16", "cpu")
