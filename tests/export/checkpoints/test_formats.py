"""The formats in which a checkpoint can be stored: the same weights give the same answers in each."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from tests.export.goldens import distance, edit, expected, outputs_of, request, run, write_json
from tests.paths import GOLDEN

Arrays = dict[str, np.ndarray]
WORD, BIAS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias", "cls.predictions.decoder"


def one_file(folder: Path, weights: Arrays) -> None:
    save_file(weights, folder / "model.safetensors")


def in_shards(folder: Path, weights: Arrays) -> None:
    (folder / "model.safetensors").unlink()
    shards = {f"model-0000{n + 1}-of-00002.safetensors": sorted(weights)[n::2] for n in range(2)}
    for file, names in shards.items():
        save_file({name: weights[name] for name in names}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, names in shards.items() for name in names}}
    write_json(folder / "model.safetensors.index.json", index)


def beside_others(folder: Path, weights: Arrays) -> None:
    """In one file, beside another copy and the index of shards that are missing."""
    one_file(folder, weights)
    save_file({name: 2 * array for name, array in weights.items()}, folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}', "utf-8")


def renamed(weights: Arrays) -> Arrays:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        next((name.replace(new, past) for new, past in old.items() if name.endswith(new)), name): array
        for name, array in weights.items()
    }


def with_copies(weights: Arrays) -> Arrays:
    """With the weights that older versions of transformers also stored: tied decoder, its bias, position numbers."""
    positions = np.arange(144, dtype=np.int64)[None]
    return weights | {
        f"{DECODER}.weight": weights[WORD].copy(),
        f"{DECODER}.bias": weights[BIAS].copy(),
        "bert.embeddings.position_ids": positions,
    }


def as_pickle_beside_others(folder: Path, weights: Arrays) -> None:
    """Beside safetensors under a name that transformers does not read, with other values."""
    shutil.copy(GOLDEN / "pickles" / "bert.bin", folder / "pytorch_model.bin")
    save_file({name: 2 * array for name, array in weights.items()}, folder / "model.fp16.safetensors")
    (folder / "model.safetensors").unlink()


STORED: dict[str, Callable[[Path, Arrays], object]] = {
    "two shards": in_shards,
    "one file beside others": beside_others,
    "a pickle beside others": as_pickle_beside_others,
    "old names of the norms": lambda folder, weights: one_file(folder, renamed(weights)),
    "copies of what is tied": lambda folder, weights: one_file(folder, with_copies(weights)),
    "an untied decoder": lambda folder, weights: one_file(folder, weights | {f"{DECODER}.weight": 2 * weights[WORD]}),
    "a decoder's own bias": lambda folder, weights: one_file(folder, weights | {f"{DECODER}.bias": 2 * weights[BIAS]}),
    "no masked-LM bias": lambda folder, weights: one_file(folder, {n: a for n, a in weights.items() if n != BIAS}),
}


def bert(folder: Path, store: Callable[[Path, Arrays], object]) -> Path:
    shutil.copytree(GOLDEN / "bert", folder)
    store(folder, load_file(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize("how", sorted(STORED))
def test_the_storage_format_does_not_change_the_answer(how: str, tmp_path: Path) -> None:
    manifest = export(bert(tmp_path / "checkpoint", STORED[how]), tmp_path / "artifact")
    bias = load_file(GOLDEN / "bert" / "model.safetensors")[BIAS]
    meant: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "an untied decoder": lambda x: 2 * (x - bias) + bias,
        "a decoder's own bias": lambda x: x + bias,
        "no masked-LM bias": lambda x: x - bias,
    }
    sequences = expected("bert")
    asked = [request(one, ["fill_mask"], manifest.sizes["vocabulary"]) for one in sequences]
    for row, want in zip(run(tmp_path / "artifact" / "cpu" / MODEL, asked), sequences, strict=True):
        got, logits = outputs_of(want, row)["vocabulary"], want["vocabulary"]
        assert distance(got, meant.get(how, np.asarray)(logits)) <= 1
    assert ("masked-LM bias" in manifest.assumed) == (how == "no masked-LM bias")


def test_an_encoder_alone_without_its_prefix_is_exported_without_the_heads(tmp_path: Path) -> None:
    def encoder_alone(folder: Path, weights: Arrays) -> None:
        kept = {name: array for name, array in weights.items() if name.startswith("bert.") and "pooler" not in name}
        one_file(folder, {name.removeprefix("bert."): array for name, array in kept.items()})

    manifest = export(bert(tmp_path / "checkpoint", encoder_alone), tmp_path / "artifact")
    assert manifest.heads == ("cls", "mean", "tokens", "layers", "attention")
    assert manifest.missing["fill_mask"] == "the checkpoint has no weights of a masked-LM head"
    rows = run(tmp_path / "artifact" / "cpu" / MODEL, [request(s, ["cls"], 1) for s in expected("bert")])
    for row, want in zip(rows, expected("bert"), strict=True):
        assert np.abs(row["cls"][0] - want["hidden"][0]).max() <= 1e-5


def test_a_config_of_google_research_is_read_and_its_defaults_are_reported(tmp_path: Path) -> None:
    source = bert(tmp_path / "checkpoint", one_file)
    edit(source / "config.json", ["model_type"])
    (source / "config.json").rename(source / "bert_config.json")
    assert set(export(source, tmp_path / "artifact").assumed) == {"model_type", "hidden_act", "pooling"}


@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("bert_model.ckpt.index", 'BertForPreTraining.from_pretrained("FOLDER/bert_model.ckpt.index", from_tf=True'),
        ("model.ckpt-1000.index", "BertForPreTraining"),
        ("tf_model.h5", 'BertForPreTraining.from_pretrained("FOLDER", from_tf=True).save_pretrained("NEW_FOLDER") and'),
    ],
)
def test_a_tensorflow_checkpoint_is_refused_with_the_call_that_converts_it(
    file: str, call: str, tmp_path: Path
) -> None:
    source = bert(tmp_path / "checkpoint", lambda folder, _: (folder / "model.safetensors").rename(folder / file))
    with pytest.raises(ExportError, match="holds a TensorFlow checkpoint, which is not supported") as raised:
        export(source, tmp_path / "artifact")
    assert "convert it once with transformers 4 (version 5 cannot) and TensorFlow: " + call in str(raised.value)
    assert 'AutoTokenizer.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER")' in str(raised.value)


def test_the_advice_names_the_class_and_tokenizer_of_a_checkpoint(tmp_path: Path) -> None:
    """AutoModelForPreTraining would replace the classifier by heads of random weights."""
    shutil.copytree(GOLDEN / "bert-labels", tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "model.safetensors").rename(tmp_path / "checkpoint" / "model.msgpack")
    with pytest.raises(ExportError) as raised:
        Checkpoint(tmp_path / "checkpoint")
    assert (
        'convert other formats with BertForSequenceClassification.from_pretrained("FOLDER").save_pretrained'
        '("NEW_FOLDER") and AutoTokenizer.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER")'
    ) in str(raised.value)
    (tmp_path / "checkpoint" / "config.json").unlink()
    with pytest.raises(ExportError, match=r"CLASS \(the class that saved the checkpoint\)\.from_pretrained"):
        Checkpoint(tmp_path / "checkpoint")


def test_a_trainers_folder_names_the_checkpoints_inside(tmp_path: Path) -> None:
    for step in (500, 1000, 1500):
        shutil.copytree(GOLDEN / "bert-labels", tmp_path / "output" / f"checkpoint-{step}")
    with pytest.raises(ExportError) as raised:
        Checkpoint(tmp_path / "output")
    assert "only checkpoints of a Trainer: checkpoint-500, checkpoint-1000, checkpoint-1500" in str(raised.value)
    assert str(raised.value).endswith(f"name one of them, like {tmp_path / 'output' / 'checkpoint-1500'}")


def in_the_hubs_cache(folder: Path) -> Path:
    commit = folder.parent / "models--hfl--chinese-macbert-base" / "snapshots" / "0123abc"
    commit.parent.mkdir(parents=True)
    return folder.rename(commit)


def with_config(folder: Path) -> Path:
    edit(folder / "config.json", _name_or_path="hfl/chinese-macbert-base")
    return folder


def with_card(folder: Path, card: str = "---\nlicense: apache-2.0\n---\n# MacBERT, 中文\n") -> Path:
    (folder / "README.md").write_text(card, "utf-8")
    return folder


NAMED: dict[str, Callable[[Path], Path]] = {
    "by its repository": in_the_hubs_cache,
    "by its folder": lambda folder: folder.rename(folder.with_name("chinese-macbert-base")),
    "by its config": with_config,
    "by its card's title": with_card,
}


@pytest.mark.parametrize("how", sorted(NAMED))
def test_a_macberts_pair_head_means_order_and_the_manifest_gives_the_reason(how: str, tmp_path: Path) -> None:
    source = NAMED[how](bert(tmp_path / "checkpoint", one_file))
    manifest = export(source, tmp_path / "artifact")
    assert manifest.pair_labels == ("in_order", "swapped")
    assert "trained on sentence order" in manifest.assumed["pair_labels"]


def test_a_card_that_only_mentions_macbert_changes_nothing(tmp_path: Path) -> None:
    card, source = "# BERT with whole word masking\n## See also\n- MacBERT\n", bert(tmp_path / "checkpoint", one_file)
    manifest = export(with_card(source, card), tmp_path / "artifact")
    assert manifest.pair_labels == ("is_next", "not_next")
    assert "pair_labels" not in manifest.assumed
