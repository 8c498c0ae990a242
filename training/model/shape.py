"""The sizes of the network, and config.json in the form of transformers. Uses the standard library only."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary_size: int
    hidden: int
    layers: int
    heads: int
    inner: int
    positions: int
    norm_eps: float


def write_config(shape: Shape, *, path: Path) -> None:
    config = {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "hidden_act": "gelu",
        "max_position_embeddings": shape.positions,
        "type_vocab_size": 2,
        "layer_norm_eps": shape.norm_eps,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_config(path: Path) -> Shape:
    config = json.loads(path.read_text(encoding="utf-8"))
    return Shape(
        vocabulary_size=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        inner=config["intermediate_size"],
        positions=config["max_position_embeddings"],
        norm_eps=config["layer_norm_eps"],
    )
