"""Every number of a config is used: the answer changes with it or it is refused; labels are read as in transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint, NamedWeights
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.families import architecture_of
from packbert.model_export.labels import classifier_of
from tests.export.goldens import changed, expected, run
from tests.paths import GOLDEN

BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 32,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-12,
    "vocab_size": 100,
    "max_position_embeddings": 143,
    "type_vocab_size": 3,
}
WITHOUT_POSITIONS = {key: value for key, value in BERT.items() if key != "max_position_embeddings"}
ROBERTA = BERT | {"pad_token_id": 0, "type_vocab_size": 2}
CHANGES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": BERT | {"embedding_size": 8, "num_hidden_groups": 1, "hidden_act": "gelu"},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 8, "hidden_dim": 32, "activation": "relu"}
    | {"vocab_size": 100, "max_position_embeddings": 143},
    "ernie": BERT | {"use_task_id": False, "task_type_vocab_size": 2},
    "electra": BERT | {"embedding_size": 8},
    "deberta-v2": WITHOUT_POSITIONS
    | {
        "pos_att_type": ["c2p"],
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "position_buckets": 12,
        "max_relative_positions": 60,
        "relative_attention": False,
        "position_biased_input": True,
        "conv_kernel_size": 3,
    },
    "roformer": BERT | {"embedding_size": 8, "rotary_value": True},
    "jina_bert": WITHOUT_POSITIONS
    | {"num_hidden_layers": 1, "feed_forward_type": "reglu", "position_embedding_type": "absolute"},
    "jina_bert_code": {"feed_forward_type": "original", "num_attention_heads": 4},
    "deberta-v2-convolution": {"conv_act": "tanh", "conv_kernel_size": 5, "conv_groups": 2}
    | {"max_relative_positions": 64},
}
CASES = [(family, key) for family, changes in CHANGES.items() for key in changes]

ASSUMED: dict[str, dict[str, Any]] = {  # by transformers, of a config without them
    "bert": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2, "max_position_embeddings": 512},
    "roberta": {"pad_token_id": 1},
    "albert": {"hidden_act": "gelu_new", "embedding_size": 128},
    "distilbert": {"activation": "gelu"},
    "electra": {"embedding_size": 128},
    "deberta-v2": {"layer_norm_eps": 1e-7},
    "gte": {"type_vocab_size": 1, "max_position_embeddings": 8192},
    "nomic_bert": {"hidden_act": "silu", "max_position_embeddings": 2048},
    "roformer": {"max_position_embeddings": 1536},
    "modernbert": {"norm_eps": 1e-5, "hidden_activation": "gelu", "max_position_embeddings": 8192},
}


@pytest.mark.parametrize("family", ASSUMED)
def test_what_a_config_lacks_is_what_transformers_assumes(family: str) -> None:
    stated = json.loads((GOLDEN / family / "config.json").read_text("utf-8"))
    for key, value in ASSUMED[family].items():
        lacking = {name: own for name, own in stated.items() if name != key}
        assert architecture_of(lacking) == architecture_of(lacking | {key: value}), key


@pytest.mark.parametrize("stated", ["sans_pos", "rope", "absolute"])
def test_modernbert_is_read_whatever_its_config_says_of_absolute_positions(stated: str) -> None:
    config = json.loads((GOLDEN / "modernbert" / "config.json").read_text("utf-8"))
    assert architecture_of(config | {"position_embedding_type": stated}) == architecture_of(config)


def cls_of(model: Path, family: str) -> np.ndarray:
    """The raw [CLS] vectors of the golden sequences."""
    tokens = [Tokens(ids=s["ids"], types=s["types"], outputs=frozenset({"cls"})) for s in expected(family)]
    return np.concatenate([row["cls"] for row in run(model, tokens)])


@pytest.mark.parametrize(("family", "key"), CASES)
def test_changing_one_number_of_the_config_changes_the_answer_or_is_refused(
    family: str, key: str, tmp_path: Path, exported: Callable
) -> None:
    source = changed(family, tmp_path / "checkpoint", **{key: CHANGES[family][key]})
    try:
        build_graph(Checkpoint(source), "fp32", "cpu").graph.save(tmp_path / MODEL)
    except ExportError:
        return
    assert np.abs(cls_of(tmp_path / MODEL, family) - cls_of(exported(family).folder / MODEL, family)).max() > 1e-4


def test_a_pad_token_id_that_is_not_the_tokenizers_is_refused(tmp_path: Path) -> None:
    source = changed("roberta", tmp_path / "checkpoint", pad_token_id=0)
    with pytest.raises(ExportError, match="pad_token_id to 0, which has no position, but the tokenizer pads with 1"):
        export(source, tmp_path / "artifact", precision="fp32")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_a_wrappers_prefix_of_all_weights_is_removed_and_reported(prefix: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    stored = load_file(GOLDEN / "bert" / "model.safetensors")
    wrapped = {prefix + name: array for name, array in stored.items()}
    save_file(wrapped, tmp_path / "checkpoint" / "model.safetensors")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert checkpoint.names == stored.keys()
    assert len([what for what in checkpoint.assumed if what.startswith("names without")]) == prefix.count(".")


@pytest.mark.parametrize(("name", "head", "rows"), [("bert-labels", "labels", 3), ("bert-tags", "tags", 5)])
def test_head_says_what_a_classifier_without_architectures_classifies(
    name: str, head: str, rows: int, tmp_path: Path
) -> None:
    labels = ("id2label", "label2id")
    source = changed(name, tmp_path / "checkpoint", labels, architectures=["BertModel"])
    with pytest.raises(ExportError, match="--head labels or --head tags"):
        export(source, tmp_path / "artifact")
    manifest = export(source, tmp_path / "artifact", head=head)
    assert head in manifest.heads
    assert manifest.labels == tuple(f"LABEL_{number}" for number in range(rows))


def classifier(**config: Any) -> tuple[tuple[str, ...], str]:
    """The labels and the score function of three logits by this config."""
    weights = NamedWeights(Checkpoint(GOLDEN / "bert-labels"))
    found = classifier_of({"architectures": ["BertForSequenceClassification"]} | config, weights)
    return found.names, found.scores


@pytest.mark.parametrize(
    ("config", "names", "scores"),
    [
        ({"id2label": {"0": "relevant"}}, ("relevant",), "sigmoid"),
        ({"id2label": {"1": "good", "0": "bad"}}, ("bad", "good"), "softmax"),
        ({}, ("LABEL_0", "LABEL_1", "LABEL_2"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "none"),
    ],
)
def test_labels_are_in_order_and_the_score_function_is_the_pipelines(
    config: dict[str, Any], names: tuple[str, ...], scores: str
) -> None:
    assert classifier(**config) == (names, scores)


@pytest.mark.parametrize("numbers", [{"0": "a", "2": "b"}, {"1": "a"}, {"first": "a"}])
def test_labels_that_are_not_numbered_from_zero_are_refused(numbers: dict[str, str]) -> None:
    with pytest.raises(
        ExportError, match=r"id2label has the numbers .*; they must be 0 to .: number the labels as the"
    ):
        classifier(id2label=numbers)
