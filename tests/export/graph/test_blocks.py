"""Attention by distance (rotary, windows, ALiBi), on texts longer than a band and a block of queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import PrecisionError
from packbert.model_export.families import FAMILIES
from tests.export.goldens import open_session, write_json

LENGTHS = (600, 300, 40, 17, 260, 150, 3, 64)
GLOBAL, LOCAL = "full_attention", "sliding_attention"
LAST_GLOBAL, LAST_LOCAL = [GLOBAL, LOCAL, LOCAL, GLOBAL], [LOCAL, GLOBAL, LOCAL]  # the kinds of the layers


def checkpoint(folder: Path, family: str, *, hidden: int, inner: int, layers: int, **config: object) -> Path:
    """A checkpoint with random weights; JinaBERT has biases, ModernBERT none."""
    random, parts, is_jina = np.random.default_rng(4), FAMILIES[family].parts, family.startswith("jina")
    stated = {
        "vocab_size": 50,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "max_position_embeddings": 1024,
    }
    shapes = {"word": (50, hidden), "segment": (2, hidden), "gated": (2 * inner, hidden), "output": (hidden, inner)}
    shapes |= {"projections": (3 * hidden, hidden)}
    weights = {}
    for part, name in parts.items():
        is_norm = part.endswith("norm")
        shape = shapes.get(part, (hidden,) if is_norm else (hidden, hidden))
        for stored in {name.format(i=i) for i in range(layers)}:
            weights[f"{stored}.weight"] = random.normal(is_norm, 1.5 / hidden**0.5, shape).astype(np.float32)
            if is_jina and part not in ("word", "segment", "gated"):
                weights[f"{stored}.bias"] = random.normal(0, 0.15, shape[:1]).astype(np.float32)
    weights.pop("layers.0.attn_norm.weight", None)  # ModernBERT's first layer has none
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    write_json(folder / "config.json", stated | config)
    return folder


def modernbert(folder: Path, *, heads: int, window: int, kinds: list[str], hidden: int = 128) -> Path:
    attention = {"num_attention_heads": heads, "local_attention": window, "layer_types": kinds}
    return checkpoint(
        folder, "modernbert", model_type="modernbert", hidden=hidden, inner=96, layers=len(kinds), **attention
    )


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
    folder = modernbert(tmp_path / "checkpoint", heads=heads, window=window, hidden=hidden, kinds=kinds)
    check_long_texts(folder, tmp_path)


@pytest.mark.parametrize(("family", "heads"), [("jina_bert", 4), ("jina_bert", 12), ("jina_bert_code", 12)])
def test_long_texts_with_a_bias_by_distance_have_them_too(family: str, heads: int, tmp_path: Path) -> None:
    stated: dict[str, Any] = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    stated |= {"hidden": 96, "inner": 64, "layers": 3, "num_attention_heads": heads}
    check_long_texts(checkpoint(tmp_path / "checkpoint", family, **stated), tmp_path)


def check_long_texts(folder: Path, tmp_path: Path) -> None:
    built = build_graph(Checkpoint(folder), "fp32", "cpu")
    built.graph.save(tmp_path / MODEL)
    session = open_session(tmp_path / MODEL, threads=2)
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
    folder = modernbert(tmp_path / "checkpoint", heads=2, window=128, kinds=[GLOBAL, LOCAL])
    with pytest.raises(PrecisionError, match="bf16 is not built for family modernbert: choose fp32 or int8"):
        build_graph(Checkpoint(folder), "bf16", "cpu")
