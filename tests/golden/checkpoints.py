"""One row per golden checkpoint: the class of transformers that has the weights, its config, its tokenizer's files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from texts import word_pieces


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    model: Any
    config: Any
    write_tokenizer: Callable[[Path], None]
    segments: int = 2  # 0 where the model takes no token types
    logits: str = ""  # what the model's `logits` are: "vocabulary", "labels", "tags"
    tasks: Mapping[str, Any] = field(default_factory=dict)  # task -> the class that does it with these weights
    dtype: torch.dtype = field(default=torch.float32)  # on disk


def write_word_pieces(folder: Path) -> None:
    """A vocab.txt and nothing made from it, as the original checkpoints have."""
    (folder / "vocab.txt").write_text("\n".join(word_pieces()) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}\n', "utf-8")


SIZES = {"vocab_size": len(word_pieces()), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
BERT = SIZES | {"max_position_embeddings": 144, "layer_norm_eps": 3e-3, "type_vocab_size": 2}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
TAGS = {
    "id2label": {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"},
    "label2id": {"O": 0, "B-PER": 1, "I-PER": 2, "B-LOC": 3, "I-LOC": 4},
}
MULTI = {"problem_type": "multi_label_classification"}

CHECKPOINTS = {
    "bert": Checkpoint(
        model=transformers.BertForPreTraining,
        config=transformers.BertConfig(**BERT),
        write_tokenizer=write_word_pieces,
        tasks={"fill_mask": transformers.BertForMaskedLM, "pairs": transformers.BertForNextSentencePrediction},
    ),
    "bert-labels": Checkpoint(
        model=transformers.BertForSequenceClassification,
        config=transformers.BertConfig(**BERT, **LABELS),
        write_tokenizer=write_word_pieces,
        logits="labels",
        tasks={"predict": transformers.BertForSequenceClassification},
        dtype=torch.float16,
    ),
    "bert-tags": Checkpoint(
        model=transformers.BertForTokenClassification,
        config=transformers.BertConfig(**BERT, **TAGS),
        write_tokenizer=write_word_pieces,
        logits="tags",
        tasks={"tag": transformers.BertForTokenClassification},
        dtype=torch.bfloat16,
    ),
}
