"""`describe` reports what a checkpoint or an artifact is; an artifact says which model it was made of."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.__main__ import main
from packbert.model_export.artifact.manifest import MANIFEST, WEIGHTS, Identity, Manifest
from packbert.model_export.checkpoint import Checkpoint
from tests.checkpoints import checkpoint
from tests.export.goldens import changed
from tests.paths import GOLDEN, SAMPLE

NOT_FINITE = "holds NaN or infinite values: the checkpoint is damaged"
RESULTS = "model-index:\n- name: e5\n  results:\n" + "  - license: none\n    value: 1\n" * 20_000  # 600 kB
NAN: dict[str, tuple[str, str]] = {  # checkpoint -> file and name of a weight that is NaN in it
    "sentence-transformers/mean": ("model.safetensors", "bert.encoder.layer.1.output.dense.bias"),
    "sentence-transformers/dense": ("2_Dense/model.safetensors", "linear.weight"),
    "multi-vectors/stanford": ("model.safetensors", "linear.weight"),
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


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("roberta-labels", "labels (bad, fair, good; scores by sigmoid)"),
        ("bert-tags", "tags (O, B-PER, I-PER, B-LOC, I-LOC)"),
    ],
)
def test_it_reports_a_classifiers_labels(name: str, labels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert described(GOLDEN / name, capsys)["heads"] == f"cls; mean; tokens; layers; {labels}; attention"


def test_it_reports_each_reason_why_an_export_would_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (changed("bert", tmp_path / "checkpoint", num_hidden_layers=2) / "vocab.txt").unlink()
    assert main([str(tmp_path / "checkpoint")], "describe") == 2
    refused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused")]
    assert len(refused) == 2
    assert "has no tokenizer that is supported" in refused[0]
    assert "weights that are not supported: bert.encoder.layer.2" in refused[1]


@pytest.mark.parametrize("name", NAN)
def test_what_an_export_refuses_is_refused(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, (file, weight) = checkpoint(name, tmp_path / "checkpoint"), NAN[name]
    weights = load_file(folder / file)
    weights[weight][..., 0] = np.nan
    save_file(weights, folder / file)
    assert NOT_FINITE in described(folder, capsys, code=2)["refused"]
    assert main([str(folder), str(tmp_path / "artifact")]) == 2
    assert NOT_FINITE in capsys.readouterr().err


def test_the_report_has_five_digits_of_the_cosine_and_its_meaning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two digits made 1 of int8's 0.99631."""
    assert main([str(GOLDEN / "bert"), str(tmp_path / "artifact"), "--precision", "int8"]) == 0
    cosine = Manifest.read(tmp_path / "artifact" / "cpu").verification["cls_smallest_cosine"]
    assert 0.9 < cosine < 0.99999
    meaning = "of the [CLS] vectors to the checkpoint's own, over random texts; 1 means equal"
    assert f"  cls_smallest_cosine {cosine:.5f}: {meaning}" in capsys.readouterr().out


def with_card(folder: Path, card: str | bytes) -> Path:
    """A checkpoint in `folder` with a model card."""
    shutil.copytree(GOLDEN / "bert", folder)
    (folder / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    return folder


def test_licence_and_languages_are_those_of_the_model_card() -> None:
    stated = Identity(version="", source="sample", revision="", license="cc-by-sa-4.0", languages=("en", "zh"))
    assert Checkpoint(SAMPLE).identity == stated
    assert Checkpoint(SAMPLE, "mine").identity == stated


@pytest.mark.parametrize(
    ("card", "licence", "languages"),
    [
        ("", "", ()),
        ("# license: mit\n", "", ()),
        ("---\nlicense: mit\n", "mit", ()),
        ("---\nlicense: mit\n---\nlanguage: en\n", "mit", ()),
        ("---\nlanguage: no\n---\n", "", ("no",)),  # Norwegian, which YAML takes for false
        ("---\nlanguage:\n- en\n- zh  # simplified\nlicense: 'apache-2.0'\n---\n", "apache-2.0", ("en", "zh")),
        ("---\nlanguage:\n  - en\ntags:\n- license: gpl\nlicense: [mit, bsd]\n---\n", "mit, bsd", ("en",)),
        ("---\nlicense: other\nlicense_name: gemma\n---\n", "gemma", ()),
        ("---\nlicense: other\n---\n", "other", ()),
        ("---\nlicense:\nlanguage: {en: 1}\n---\n", "", ()),
        (b"\xef\xbb\xbf---\r\nlicense: mit\r\nlanguage:\r\n- de\r\n---\r\n", "mit", ("de",)),
        (b"---\nlicense: \xff\xfe\n---\n", "\ufffd\ufffd", ()),
        (f"---\n{RESULTS}license: mit\n---\n", "mit", ()),
        ("---\nlicense: *mit\nlanguage: en\n---\n", "", ()),  # no YAML
        ("---\nlanguage: " + "[" * 5000 + "\n---\n", "", ()),
    ],
)
def test_a_model_card_states_licence_and_languages_or_nothing(
    card: str | bytes, licence: str, languages: tuple[str, ...], tmp_path: Path
) -> None:
    found = Checkpoint(with_card(tmp_path / "bert", card)).identity
    assert (found.license, found.languages) == (licence, languages)


def test_an_artifact_is_described_and_its_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = "---\nlicense: mit\nlanguage: [en, zh]\n---\n"
    checkpoint, artifact = with_card(tmp_path / "bert", card), tmp_path / "artifact"
    assert main([str(checkpoint), str(artifact), "--name", "mine", "--version", "2.1"]) == 0
    written = capsys.readouterr().out
    assert main([str(artifact)], "describe") == 0
    assert f"wrote {capsys.readouterr().out}" == written
    manifest = Manifest.read(artifact / "cpu")
    lines = written.splitlines()
    assert lines[0].startswith(f"wrote {artifact / 'cpu'}: mine, bert, 3 layers of 32, ")
    assert lines[1] == f"  digest {manifest.digest}, exported by {manifest.exporter}"
    assert lines[2:6] == ["  version: 2.1", "  source: bert", "  licence: mit", "  languages: en, zh"]
    assert "  cls_max_abs_error " in written
    (artifact / "cpu" / WEIGHTS).write_bytes(b"")
    assert main([str(artifact)], "describe") == 2
    assert f"{WEIGHTS} is damaged" in capsys.readouterr().err


def test_two_exports_of_a_checkpoint_have_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert main([str(GOLDEN / "bert"), str(tmp_path / name), "--version", "2"]) == 0
    first, second = tmp_path / "first" / "cpu", tmp_path / "second" / "cpu"
    assert {path.name for path in first.iterdir()} == {*Manifest.read(first).files, MANIFEST}
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
