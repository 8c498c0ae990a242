"""A checkpoint that is not supported is refused: exit code 2, one sentence, and no files left behind."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.__main__ import main
from tests.paths import GOLDEN

Damage = Callable[[Path], object]
Command = Callable[..., tuple[int, str]]
POOLER = "bert.pooler.dense.weight"
NAN = {POOLER: np.full((32, 32), np.nan, np.float32)}


@pytest.fixture
def exported(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command; returns its exit code and stderr."""

    def run(*words: object) -> tuple[int, str]:
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err

    return run


def weights(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Damage:
    """Changes the checkpoint's weights."""

    def damage(folder: Path) -> None:
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")

    return damage


def without(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


def in_place_of(file: str, make: Damage) -> Damage:
    """Makes something else of the name of a file, which need not be there."""

    def damage(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return damage


def sparse(path: Path, size: int) -> None:
    """A file of `size` bytes that takes no room."""
    with path.open("wb") as file:
        file.truncate(size)


def appended(file: str, content: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes() + content)


def truncated(file: str) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-1000])


def config(**keys: object) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps(content | keys), "utf-8")

    return damage


def modules(kind: str) -> Damage:
    """Lists one module of sentence-transformers."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"sentence_transformers.models.{kind}"}]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(listed), "utf-8")


def eight_bits(folder: Path) -> None:
    """A safetensors file with one weight of a type that NumPy does not have."""
    header = json.dumps({POOLER: {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"88")


def a_million_names() -> bytes:
    """A safetensors file with a million weights without elements."""
    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(entry % n for n in range(1_000_000)) + "}").encode()
    return len(header).to_bytes(8, "little") + header


def indexed(content: str) -> Damage:
    """Leaves only the index of the shards."""

    def damage(folder: Path) -> None:
        without("model.safetensors")(folder)
        (folder / "model.safetensors.index.json").write_text(content, "utf-8")

    return damage


DAMAGES = {
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
        r"has shape [16, 32], but config.json says it should be [32, 32]",
    ),
    "a NaN": (weights(lambda w: w | NAN), "holds NaN or infinite values"),
    "no weights": (without("model.safetensors"), "has no *.safetensors or pytorch_model*.bin file"),
    "no config": (without("config.json"), "config.json is missing"),
    "no tokenizer": (without("vocab.txt"), "has no tokenizer that is supported"),
    "a vocabulary larger than the model": (
        appended("vocab.txt", b"one\nmore\n"),
        "the tokenizer has id 171 (more), but the model has only 170 word embeddings",
    ),
    "truncated weights": (truncated("model.safetensors"), "truncated or damaged"),
    "a damaged config": (
        lambda folder: (folder / "config.json").write_text("{", "utf-8"),
        "config.json cannot be read",
    ),
    "another family": (config(model_type="t5"), "model_type 't5'; supported are albert, bert, camembert"),
    "another activation": (config(hidden_act="mish"), "hidden_act to 'mish'"),
    "a decoder": (config(is_decoder=True), "is_decoder to True"),
    "an index of missing shards": (
        indexed('{"weight_map": {"a": "model-1.safetensors"}}'),
        "model-1.safetensors is missing: the download is not complete",
    ),
    "an index of nothing": (indexed("{}"), "its weight_map must give the file of each weight"),
    "an index of numbers": (
        indexed('{"weight_map": {"a": 1}}'),
        "its weight_map must give the file of each weight",
    ),
    "an index that leaves its folder": (
        indexed('{"weight_map": {"a": "model-1.safetensors", "b": "../checkpoint/model-2.safetensors"}}'),
        "names '../checkpoint/model-2.safetensors': a shard must be a file beside the index",
    ),
    "an index with an absolute path": (
        indexed('{"weight_map": {"a": "/dev/zero"}}'),
        "names '/dev/zero': a shard must be a file beside the index",
    ),
    "a config nested 100,000 deep": (
        lambda folder: (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000, "utf-8"),
        "config.json cannot be read: its values are nested too deeply",
    ),
    "a config of 20 MB": (
        lambda folder: (folder / "config.json").write_text('{"a": "' + "b" * 20_000_000 + '"}', "utf-8"),
        "config.json cannot be read: it has 20000009 bytes; at most 16777216 are allowed",
    ),
    "a config that is a FIFO": (
        in_place_of("config.json", os.mkfifo),
        "config.json cannot be read: it is not a regular",
    ),
    "a config that never ends": (
        in_place_of("config.json", lambda path: path.symlink_to("/dev/zero")),
        "config.json cannot be read: it is not a regular file",
    ),
    "a vocabulary of 3 GB": (
        in_place_of("vocab.txt", lambda path: sparse(path, 3 * 2**30)),
        "vocab.txt cannot be read: it has 3221225472 bytes; at most 67108864 are allowed",
    ),
    "a tokenizer.json of 2 GB": (
        in_place_of("tokenizer.json", lambda path: sparse(path, 2 * 2**30)),
        "tokenizer.json cannot be read: it has 2147483648 bytes; at most 67108864 are allowed",
    ),
    "a million names": (
        lambda folder: (folder / "model.safetensors").write_bytes(a_million_names()),
        "it is no checkpoint of a BERT",
    ),
    "weights of eight bits": (
        eight_bits,
        "as F8_E4M3, which is not supported: convert with BertForPreTraining.from_pretrained",
    ),
    "names with something before": (
        weights(lambda w: {f"model.{n}": a for n, a in w.items()}),
        "only 'model.bert.embeddings.word",
    ),
    "a table of words": (modules("StaticEmbedding"), "is a StaticEmbedding of sentence-transformers, a table of word"),
    "several models": (modules("Router"), "several models in one, which are not served: choose a checkpoint without"),
    "a GLiNER": (
        lambda folder: (folder / "config.json").rename(folder / "gliner_config.json"),
        "is a GLiNER, which is not served: choose a checkpoint for token labels",
    ),
    "a mixture of experts": (
        config(num_experts=8),
        "sets num_experts to 8, which is not supported (only 0 is): choose a checkpoint that was trained so",
    ),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text("{}", "utf-8"),
        "holds an adapter of type None; only LORA is merged here",
    ),
    "a part of an artifact": (
        lambda folder: (folder / "model.safetensors").rename(folder / "manifest.json"),
        "is a part of an artifact, for one device: name the artifact, ",
    ),
    "a pointer of Git LFS": (
        lambda folder: (folder / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\n", "utf-8"
        ),
        "is only a pointer of Git LFS: run `git lfs pull`",
    ),
}


@pytest.mark.parametrize("what", sorted(DAMAGES))
def test_a_damaged_checkpoint_is_refused_and_no_files_are_left(what: str, tmp_path: Path, exported: Command) -> None:
    damage, sentence = DAMAGES[what]
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    damage(tmp_path / "checkpoint")
    code, said = exported(tmp_path / "checkpoint", tmp_path / "artifact")
    assert code == 2
    assert said.startswith("packbert export: ")
    assert sentence in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("held", ["notes.txt", "cpu"])
def test_an_occupied_folder_is_not_changed(held: str, tmp_path: Path, exported: Command) -> None:
    (tmp_path / "artifact" / held).mkdir(parents=True)
    (tmp_path / "artifact" / held / "mine.txt").write_text("mine", "utf-8")
    code, said = exported(GOLDEN / "bert", tmp_path / "artifact")
    assert code == 2
    assert "already holds" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]


def test_a_precision_without_kernels_on_the_device_is_refused(tmp_path: Path, exported: Command) -> None:
    code, said = exported(GOLDEN / "bert", tmp_path / "artifact", "--precision", "fp16")
    assert code == 2
    assert "precision fp16 is not supported on cpu; choose one of: fp32 on cpu and cuda; bf16 on cpu; fp16 on" in said
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize("architectures", [[], ["BertForRanking"]])
def test_a_classifier_of_unknown_kind_is_refused(architectures: list[str], tmp_path: Path, exported: Command) -> None:
    shutil.copytree(GOLDEN / "bert-labels", tmp_path / "checkpoint")
    config(architectures=architectures)(tmp_path / "checkpoint")
    code, said = exported(tmp_path / "checkpoint", tmp_path / "artifact")
    assert code == 2
    assert "it must name one class that ends in ForSequenceClassification or ForTokenClassification" in said


def test_the_command_exits_with_2_and_one_sentence(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "packbert", "export", str(tmp_path), str(tmp_path / "artifact")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"packbert export: {tmp_path} has no *.safetensors or")
    assert finished.stderr.count("\n") == 1


def test_a_hub_id_that_cannot_be_downloaded_is_refused_with_a_solution(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "model_export", "nowhere/no-such-bert@v1", str(tmp_path / "artifact")]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
    assert finished.returncode == 2
    assert "nowhere/no-such-bert is not a local folder and could not be downloaded" in finished.stderr
    assert not (tmp_path / "artifact").exists()


def test_a_revision_of_a_folder_is_refused(tmp_path: Path, exported: Command) -> None:
    code, said = exported(Path(f"{GOLDEN / 'bert'}@v1"), tmp_path / "artifact")
    assert code == 2
    assert "bert@v1 is missing: CHECKPOINT is a folder with config.json and *.safetensors, or a hub id" in said
