"""`describe` reports what a checkpoint is without writing anything."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.__main__ import main
from packbert.model_export.artifact.manifest import Manifest
from tests import multi_vectors, sentence_transformers
from tests.export.goldens import changed
from tests.paths import GOLDEN

NOT_FINITE = "holds NaN or infinite values: the checkpoint is damaged"
REFUSED: dict[str, tuple[Callable[[str, Path], Path], str, str]] = {  # checkpoint -> a weight that is NaN in it, reason
    "mean": (sentence_transformers.checkpoint, "model.safetensors bert.encoder.layer.1.output.dense.bias", NOT_FINITE),
    "dense": (sentence_transformers.checkpoint, "2_Dense/model.safetensors linear.weight", NOT_FINITE),
    "stanford": (multi_vectors.checkpoint, "model.safetensors linear.weight", NOT_FINITE),
    "pylate": (multi_vectors.checkpoint, "", "marks texts with '[Q] ', and its tokenizer has no such token"),
}


def described(folder: Path, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, str]:
    assert main([str(folder)], "describe") == code
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {name: what.strip() for name, what in lines}


def test_it_reports_family_sizes_tokenizer_and_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert described(GOLDEN / "albert", capsys) == {
        "source": "albert",
        "weights": "safetensors, 48 arrays, 24,453 parameters",
        "family": "albert",
        "encoder": "4 layers of 32, 4 heads, feed-forward 64 with gelu_tanh, embeddings of 16",
        "embeddings": "163 words, 144 positions from row 0, 2 segments",
        "tokenizer": "Unigram from tokenizer.json, 163 pieces, cls 2, sep 3, mask 4, pad 0, unk 1; at most 144 tokens",
        "embedding": "the hidden state of [CLS]: 32 numbers",
        "heads": "cls; mean; tokens; layers; pooler; pair (in_order, swapped); fill_mask; attention",
        "no choices": "the checkpoint has no multiple-choice head",
        "no labels": "the checkpoint has no classifier of texts",
        "no sparse": "the checkpoint was not trained for sparse vectors",
        "no spans": "the checkpoint has no weights of a question-answering head",
        "no tags": "the checkpoint has no classifier of tokens",
        "assumed pooling": "cls; sentence-transformers takes the mean without modules.json",
        "refused": "nothing: it can be exported",
    }


def test_it_reports_a_classifiers_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        described(GOLDEN / "roberta-labels", capsys)["heads"]
        == "cls; mean; tokens; layers; labels (bad, fair, good; scores by sigmoid); attention"
    )
    tags = described(GOLDEN / "bert-tags", capsys)["heads"]
    assert tags == "cls; mean; tokens; layers; tags (O, B-PER, I-PER, B-LOC, I-LOC); attention"


def test_it_reports_each_reason_why_an_export_would_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (changed("bert", tmp_path / "checkpoint", num_hidden_layers=2) / "vocab.txt").unlink()
    assert main([str(tmp_path / "checkpoint")], "describe") == 2
    refused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused")]
    assert len(refused) == 2
    assert "has no tokenizer that is supported" in refused[0]
    assert "weights that are not supported: bert.encoder.layer.2" in refused[1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_export_refuses_is_refused(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make, weight, reason = REFUSED[name]
    folder = make(name, tmp_path / "checkpoint")
    if weight:
        file, _, key = weight.partition(" ")
        weights = load_file(folder / file)
        weights[key][..., 0] = np.nan
        save_file(weights, folder / file)
    else:
        settings = folder / "config_sentence_transformers.json"
        settings.write_text(settings.read_text("utf-8").replace('"query_prefix": "x", ', ""), "utf-8")
    assert reason in described(folder, capsys, code=2)["refused"]
    assert main([str(folder), str(tmp_path / "artifact")]) == 2
    assert reason in capsys.readouterr().err


def test_the_report_has_five_digits_of_the_cosine_and_its_meaning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two digits made 1 of int8's 0.99631."""
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "int8"]) == 0
    cosine = Manifest.read(tmp_path / "artifact" / "cpu").verification["cls_smallest_cosine"]
    assert 0.9 < cosine < 0.99999
    meaning = "of the [CLS] vectors to the checkpoint's own, over random texts; 1 means equal"
    assert f"  cls_smallest_cosine {cosine:.5f}: {meaning}" in capsys.readouterr().out
