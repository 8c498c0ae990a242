"""One row per golden checkpoint: its class in transformers, its config, its tokenizer's files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from tokenizers_of_families import (
    ALBERT,
    CAMEMBERT,
    DEBERTA,
    XLM_ROBERTA,
    Writer,
    berts_word_piece,
    byte_pairs,
    byte_pairs_of_modernbert,
    made_fast,
    word_piece,
    word_piece_of_mpnet,
)


def named(*labels: str) -> dict[str, dict[Any, Any]]:
    """The config of a classifier with these labels."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}


LABELS = named("bad", "fair", "good")
TAGS = named("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEADS = {  # the end of the class's name, the task
    "labels": ("ForSequenceClassification", "predict"),
    "tags": ("ForTokenClassification", "tag"),
    "spans": ("ForQuestionAnswering", "answer"),
    "choices": ("ForMultipleChoice", "choose"),
}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "layer_norm_eps": 3e-3,
}
BERT = SIZES | {"max_position_embeddings": 144, "type_vocab_size": 2}
ROBERTA = SIZES | {
    "max_position_embeddings": 146,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ALBERT_SIZES = BERT | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "hidden_act": "gelu_new"}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 144}
ERNIE = BERT | {"use_task_id": True, "task_type_vocab_size": 3}
MPNET = {key: value for key, value in ROBERTA.items() if key != "type_vocab_size"}
MODERNBERT = {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "norm_eps": 3e-3,
    "max_position_embeddings": 144,
    "local_attention": 12,
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0),
}
GTE = BERT | {"type_vocab_size": 1}
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
ROFORMER = BERT | SUMMARY | {"embedding_size": 16}
ELECTRA = BERT | {"embedding_size": 16}
DEBERTA_V3 = SIZES | {
    "max_position_embeddings": 144,
    "type_vocab_size": 0,
    "pad_token_id": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "position_buckets": 16,
    "max_relative_positions": 100,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
MULTI = {"problem_type": "multi_label_classification"}
ONE = {"problem_type": "regression"} | named("grade")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    kind: str  # the class in transformers
    config: Mapping[str, Any]  # without vocab_size
    write_tokenizer: Writer
    segments: int = 2  # 0 if the model takes no token types
    logits: str = ""  # what the model's `logits` are: "vocabulary", "labels", "tags", "spans", "choices"
    tasks: Mapping[str, str] = field(default_factory=dict)  # task -> the class for it
    dtype: torch.dtype = field(default=torch.float32)  # on disk

    @property
    def model(self) -> Any:
        return getattr(transformers, self.kind)


def fine_tuned(
    prefix: str,
    config: Mapping[str, Any],
    write: Writer,
    *,
    segments: int,
    labels: Mapping[str, Any] = LABELS,
    heads: Iterable[str] = HEADS,
) -> dict[str, Checkpoint]:
    """The fine-tuned checkpoints of a family, with half-precision weights and a tokenizer.json."""
    shallow = {
        key: min(value, 2) if key in ("num_hidden_layers", "n_layers") else value for key, value in config.items()
    }
    own, found = {"labels": dict(labels), "tags": TAGS}, {}
    for head in heads:
        end, task = HEADS[head]
        found[head] = Checkpoint(
            kind=prefix + end,
            config=shallow | own.get(head, {}),
            write_tokenizer=made_fast(write),
            segments=segments,
            logits=head,
            tasks={task: prefix + end},
            dtype=torch.bfloat16 if head == "tags" else torch.float16,
        )
    return found


def masked(prefix: str, config: Mapping[str, Any], write: Writer, *, segments: int) -> Checkpoint:
    kind = f"{prefix}ForMaskedLM"
    return Checkpoint(
        kind=kind,
        config=config,
        write_tokenizer=write,
        segments=segments,
        logits="vocabulary",
        tasks={"fill_mask": kind},
    )


def pretrained(prefix: str, config: Mapping[str, Any], write: Writer, *, pairs: str) -> Checkpoint:
    tasks = {"fill_mask": f"{prefix}ForMaskedLM", "pairs": f"{prefix}{pairs}"}
    return Checkpoint(kind=f"{prefix}ForPreTraining", config=config, write_tokenizer=write, tasks=tasks)


@dataclass(frozen=True)
class Family:
    """A pre-trained checkpoint, with the class for `pairs` if it learned them, and those fine-tuned from it."""

    prefix: str
    config: Mapping[str, Any]
    write: Writer
    segments: int
    pairs: str = ""
    labels: Mapping[str, Any] = field(default_factory=lambda: LABELS)
    heads: Iterable[str] = tuple(HEADS)

    def checkpoints(self, name: str) -> dict[str, Checkpoint]:
        parts = self.prefix, self.config, self.write
        first = pretrained(*parts, pairs=self.pairs) if self.pairs else masked(*parts, segments=self.segments)
        tuned = fine_tuned(*parts, segments=self.segments, labels=self.labels, heads=self.heads)
        return {name: first} | {f"{name}-{head}": row for head, row in tuned.items()}


NSP, TWO_HEADS = "ForNextSentencePrediction", ("labels", "tags")
FAMILIES = {
    "bert": Family("Bert", BERT, word_piece, 2, pairs=NSP),
    "roberta": Family("Roberta", ROBERTA, byte_pairs, 1, labels=LABELS | MULTI),
    "xlm-roberta": Family("XLMRoberta", ROBERTA, XLM_ROBERTA, 1),
    "camembert": Family("Camembert", ROBERTA, CAMEMBERT, 1),
    "albert": Family("Albert", ALBERT_SIZES, ALBERT, 2, pairs="ForPreTraining"),
    "distilbert": Family("DistilBert", DISTILBERT, word_piece, 0, labels=ONE),
    "ernie": Family("Ernie", ERNIE, word_piece, 2, pairs=NSP),
    "electra": Family("Electra", ELECTRA, word_piece, 2),
    "mpnet": Family("MPNet", MPNET, word_piece_of_mpnet, 0),
    "modernbert": Family("ModernBert", MODERNBERT, byte_pairs_of_modernbert, 0),
    "nomic_bert": Family("NomicBert", BERT, word_piece, 2, heads=TWO_HEADS),
    "gte": Family("Gte", GTE, XLM_ROBERTA, 1, heads=TWO_HEADS),
    "roformer": Family("RoFormer", ROFORMER, berts_word_piece, 2),
    "deberta-v2": Family("DebertaV2", DEBERTA_V3, DEBERTA, 0),
}
CHECKPOINTS = {key: row for name, family in FAMILIES.items() for key, row in family.checkpoints(name).items()}
CHECKPOINTS["modernbert-mean"] = fine_tuned(
    "ModernBert", MODERNBERT | {"classifier_pooling": "mean"}, byte_pairs_of_modernbert, segments=0
)["labels"]
CHECKPOINTS["roformer-values"] = masked("RoFormer", BERT | {"rotary_value": True}, berts_word_piece, segments=2)
CHECKPOINTS["electra-discriminator"] = Checkpoint(
    kind="ElectraForPreTraining", config=BERT | {"embedding_size": 32}, write_tokenizer=word_piece, logits="replaced"
)
# as of v2-xlarge: a convolution, the authors' masked-LM head; own projections of the distances, each of which counts
CHECKPOINTS["deberta-v2-convolution"] = Checkpoint(
    kind="DebertaV2ForMaskedLM",
    config=DEBERTA_V3
    | {"share_att_key": False, "position_buckets": -1, "max_relative_positions": -1, "norm_rel_ebd": "none"}
    | {"conv_kernel_size": 3, "conv_act": "gelu", "legacy": False},
    write_tokenizer=DEBERTA,
    segments=0,
    logits="vocabulary",
)
CHECKPOINTS["deberta-v2-one-term"] = Checkpoint(
    kind="DebertaV2ForSequenceClassification",
    config=DEBERTA_V3 | {"pos_att_type": "p2c", "conv_kernel_size": 3, "num_hidden_layers": 2},
    write_tokenizer=made_fast(DEBERTA),
    segments=0,
    logits="labels",
)
