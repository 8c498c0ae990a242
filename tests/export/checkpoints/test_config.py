"""Every number of a config is used: if one changes, the answer changes or the export is refused."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.families import architecture_of
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
ROBERTA = BERT | {"pad_token_id": 0, "type_vocab_size": 2}
CHANGES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": BERT | {"embedding_size": 8, "num_hidden_groups": 1, "hidden_act": "gelu"},
    "distilbert": {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 8,
        "hidden_dim": 32,
        "activation": "relu",
        "vocab_size": 100,
        "max_position_embeddings": 143,
    },
    "ernie": BERT | {"use_task_id": False, "task_type_vocab_size": 2},
    "electra": BERT | {"embedding_size": 8},
    "deberta-v2": {key: value for key, value in BERT.items() if key != "max_position_embeddings"}
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
    "jina_bert": {key: value for key, value in BERT.items() if key != "max_position_embeddings"}
    | {"num_hidden_layers": 1, "feed_forward_type": "reglu", "position_embedding_type": "absolute"},
    "jina_bert_code": {"feed_forward_type": "original", "num_attention_heads": 4},
    "deberta-v2-convolution": {
        "conv_act": "tanh",
        "conv_kernel_size": 5,
        "conv_groups": 2,
        "max_relative_positions": 64,
    },
}
CASES = [(family, key) for family, changes in CHANGES.items() for key in changes]


@pytest.mark.parametrize("stated", ["sans_pos", "rope", "absolute"])
def test_modernbert_is_read_whatever_its_config_says_of_absolute_positions(stated: str) -> None:
    config = json.loads((GOLDEN / "modernbert" / "config.json").read_text("utf-8"))
    assert architecture_of(config | {"position_embedding_type": stated}) == architecture_of(config)


@cache
def cls_of(artifact: Path, family: str) -> np.ndarray:
    """The raw [CLS] vectors of the golden sequences."""
    tokens = [Tokens(ids=s["ids"], types=s["types"], outputs=frozenset({"cls"})) for s in expected(family)]
    return np.concatenate([row["cls"] for row in run(artifact / MODEL, tokens)])


@pytest.mark.parametrize(("family", "key"), CASES)
def test_changing_one_number_of_the_config_changes_the_answer_or_is_refused(
    family: str, key: str, tmp_path: Path, exported: Callable
) -> None:
    source = changed(family, tmp_path / "checkpoint", **{key: CHANGES[family][key]})
    try:
        export(source, tmp_path / "artifact", precision="fp32")
    except ExportError:
        assert not (tmp_path / "artifact").exists()
        return
    assert np.abs(cls_of(tmp_path / "artifact" / "cpu", family) - cls_of(exported(family).folder, family)).max() > 1e-4


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("hidden_act", "mish", "hidden_act to 'mish'"),
        ("position_embedding_type", "relative_key", "position_embedding_type to 'relative_key'"),
        ("is_decoder", True, "is_decoder to True"),
        (
            "model_type",
            "convbert",
            "model_type 'convbert'; supported are albert, .*mpnet.*: choose a checkpoint of these",
        ),
        ("num_attention_heads", 5, "hidden size 32, which is not divisible by 5 heads"),
        ("hidden_size", None, "has no hidden_size"),
        ("quantization_config", {"bits": 4}, "quantization_config"),
        ("tie_word_embeddings", False, "tie_word_embeddings to False, but the checkpoint has no decoder"),
    ],
)
def test_a_config_value_that_is_not_supported_is_refused_by_name(
    key: str, value: object, sentence: str, tmp_path: Path
) -> None:
    source = changed("bert", tmp_path / "checkpoint", **{key: value})
    with pytest.raises(ExportError, match=sentence.replace("(", r"\(")):
        export(source, tmp_path / "artifact", precision="fp32")


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
