"""A checkpoint that is not supported is refused: exit code 2, one sentence, and no files left behind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.__main__ import main
from tests.export.goldens import changed, edit
from tests.paths import GOLDEN

Damage = Callable[[Path], object]
WEIGHTS, POOLER = "model.safetensors", "bert.pooler.dense.weight"
EMPTY = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'  # a weight without elements


def refusal(source: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says, which exports `source` to `tmp_path`/artifact."""
    assert main([str(source), str(tmp_path / "artifact")]) == 2
    return capsys.readouterr().err


def weights(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Damage:
    """Changes the checkpoint's weights."""
    return lambda folder: save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def both(one: Damage, other: Damage) -> Damage:
    return lambda folder: (one(folder), other(folder))


def without(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


def renamed(file: str, name: str) -> Damage:
    return lambda folder: (folder / file).rename(folder / name)


def written(file: str, change: Callable[[bytes], bytes | str] | str) -> Damage:
    """Writes a file: what `change` makes of its content, or a text."""

    def damage(folder: Path) -> None:
        content = change if isinstance(change, str) else change((folder / file).read_bytes())
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def config(**keys: object) -> Damage:
    return lambda folder: edit(folder / "config.json", **keys)


def modules(kind: str) -> Damage:
    """Lists one module of sentence-transformers."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"sentence_transformers.models.{kind}"}]
    return written("modules.json", json.dumps(listed))


def with_header(header: str, content: bytes = b"") -> Damage:
    """A safetensors file with this header."""
    return written(WEIGHTS, lambda _: len(header).to_bytes(8, "little") + header.encode() + content)


def indexed(**shards: object) -> Damage:
    """Leaves only the index of the shards, with the file of each weight."""
    return both(without(WEIGHTS), written(f"{WEIGHTS}.index.json", json.dumps({"weight_map": shards})))


NO_MAP = "its weight_map must give the file of each weight"
NOT_REGULAR = "config.json cannot be read: it is not a regular file"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "an unread weight": (
        weights(lambda w: w | {"span_outputs.weight": w[POOLER]}),
        "weights that are not supported: span_outputs.weight",
    ),
    "a missing weight": (
        weights(lambda w: {n: a for n, a in w.items() if "layer.1.output.dense.bias" not in n}),
        "has no weight",
    ),
    "a wrong shape": (
        weights(lambda w: w | {POOLER: w[POOLER][:16]}),
        "has shape [16, 32], but config.json says it should be [32, 32]",
    ),
    "no weights": (without(WEIGHTS), "has no *.safetensors or pytorch_model*.bin file"),
    "no config": (without("config.json"), "config.json is missing"),
    "no tokenizer": (without("vocab.txt"), "has no tokenizer that is supported"),
    "a vocabulary larger than the model": (
        written("vocab.txt", lambda content: content + b"one\nmore\n"),
        "the tokenizer has id 171 (more), but the model has only 170 word embeddings",
    ),
    "a vocabulary without a mask": (
        written("vocab.txt", lambda content: content.replace(b"[MASK]", b"mask")),
        "its tokenizer has no mask token",
    ),
    "truncated weights": (written(WEIGHTS, lambda content: content[:-1000]), "truncated or damaged"),
    "a damaged config": (written("config.json", "{"), "config.json cannot be read"),
    "another family": (config(model_type="convbert"), "model_type 'convbert'; supported are albert, bert, camembert"),
    "no family": (
        both(weights(lambda w: {n.removeprefix("bert."): a for n, a in w.items()}), config(model_type=None)),
        "model_type None",
    ),
    "another activation": (config(hidden_act="mish"), "hidden_act to 'mish'"),
    "other positions": (
        config(position_embedding_type="relative_key"),
        "position_embedding_type to 'relative_key'",
    ),
    "a decoder": (config(is_decoder=True), "is_decoder to True"),
    "heads that do not fit": (
        config(num_attention_heads=5),
        "hidden size 32, which is not divisible by 5 heads",
    ),
    "no size": (config(hidden_size=None), "has no hidden_size"),
    "quantized weights": (config(quantization_config={"bits": 4}), "quantization_config"),
    "no decoder of its own": (
        config(tie_word_embeddings=False),
        "tie_word_embeddings to False, but the checkpoint has no decoder",
    ),
    "an index of missing shards": (
        indexed(a="model-1.safetensors"),
        "model-1.safetensors is missing: the download is not complete",
    ),
    "an index of nothing": (both(written(f"{WEIGHTS}.index.json", "{}"), without(WEIGHTS)), NO_MAP),
    "an index of numbers": (indexed(a=1), NO_MAP),
    "an index that leaves its folder": (
        indexed(a="model-1.safetensors", b="../checkpoint/model-2.safetensors"),
        "names '../checkpoint/model-2.safetensors': a shard must be a file beside the index",
    ),
    "an index with an absolute path": (
        indexed(a="/dev/zero"),
        "names '/dev/zero': a shard must be a file beside the index",
    ),
    "a config nested 100,000 deep": (
        written("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        "config.json cannot be read: its values are nested too deeply",
    ),
    "a config of 20 MB": (
        written("config.json", '{"a": "' + "b" * 20_000_000 + '"}'),
        "config.json cannot be read: it has 20000009 bytes; at most 16777216 are allowed",
    ),
    "a config that is a FIFO": (
        both(without("config.json"), lambda folder: os.mkfifo(folder / "config.json")),
        NOT_REGULAR,
    ),
    "a config that never ends": (
        both(without("config.json"), lambda folder: (folder / "config.json").symlink_to("/dev/zero")),
        NOT_REGULAR,
    ),
    "a vocabulary of 3 GB": (  # which takes no room
        lambda folder: os.truncate(folder / "vocab.txt", 3 * 2**30),
        "vocab.txt cannot be read: it has 3221225472 bytes; at most 67108864 are allowed",
    ),
    "a million names": (
        with_header("{" + ",".join(EMPTY % n for n in range(1_000_000)) + "}"),
        "it is no checkpoint of a BERT",
    ),
    "weights of eight bits": (
        with_header(json.dumps({POOLER: {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}), b"88"),
        "as F8_E4M3, which is not supported: convert with BertForPreTraining.from_pretrained",
    ),
    "names with something before": (
        weights(lambda w: {f"model.{n}": a for n, a in w.items()}),
        "only 'model.bert.embeddings.word",
    ),
    "a table of words": (modules("StaticEmbedding"), "is a StaticEmbedding of sentence-transformers, a table of word"),
    "several models": (modules("Router"), "several models in one, which are not served: choose a checkpoint without"),
    "a GLiNER": (
        renamed("config.json", "gliner_config.json"),
        "is a GLiNER, which is not served: choose a checkpoint for token labels",
    ),
    "a mixture of experts": (
        config(num_experts=8),
        "sets num_experts to 8, which is not supported (only 0 is): choose a checkpoint that was trained so",
    ),
    "a part of an artifact": (
        renamed(WEIGHTS, "manifest.json"),
        "is a part of an artifact, for one device: name the artifact, ",
    ),
    "a pointer of Git LFS": (
        written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
        "is only a pointer of Git LFS: run `git lfs pull`",
    ),
}


@pytest.mark.parametrize("what", sorted(DAMAGES))
def test_a_damaged_checkpoint_is_refused_and_no_files_are_left(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, sentence = DAMAGES[what]
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    damage(tmp_path / "checkpoint")
    said = refusal(tmp_path / "checkpoint", tmp_path, capsys)
    assert said.startswith("packbert export: ")
    assert said.count("\n") == 1
    assert sentence in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    assert main([str(tmp_path / "checkpoint")], "describe") == 2


@pytest.mark.parametrize("held", ["notes.txt", "cpu"])
def test_an_occupied_folder_is_not_changed(held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "artifact" / held).mkdir(parents=True)
    (tmp_path / "artifact" / held / "mine.txt").write_text("mine", "utf-8")
    assert "already holds" in refusal(GOLDEN / "bert", tmp_path, capsys)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]


@pytest.mark.parametrize("architectures", [[], ["BertForRanking"]])
def test_a_classifier_of_unknown_kind_is_refused(
    architectures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = changed("bert-labels", tmp_path / "checkpoint", architectures=architectures)
    expected = "it must name one class that ends in ForSequenceClassification or ForTokenClassification"
    assert expected in refusal(source, tmp_path, capsys)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = "bert@v1 is missing: CHECKPOINT is a folder with config.json and *.safetensors, or a hub id"
    assert expected in refusal(f"{GOLDEN / 'bert'}@v1", tmp_path, capsys)
