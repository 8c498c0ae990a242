"""Writes and reads a checkpoint folder in the layout of transformers.

The file holds fp16; reading it gives fp32 tensors of the same values.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.model.model import Bert
from training.model.shape import Shape, read_config, write_config

LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}
OUTSIDE = {
    "encoder.words.weight": "bert.embeddings.word_embeddings.weight",
    "encoder.positions.weight": "bert.embeddings.position_embeddings.weight",
    "encoder.segments.weight": "bert.embeddings.token_type_embeddings.weight",
    "encoder.norm.weight": "bert.embeddings.LayerNorm.weight",
    "encoder.norm.bias": "bert.embeddings.LayerNorm.bias",
    "pooler.weight": "bert.pooler.dense.weight",
    "pooler.bias": "bert.pooler.dense.bias",
    "transform.weight": "cls.predictions.transform.dense.weight",
    "transform.bias": "cls.predictions.transform.dense.bias",
    "transform_norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "transform_norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "score_bias": "cls.predictions.bias",
    "next_sentence.weight": "cls.seq_relationship.weight",
    "next_sentence.bias": "cls.seq_relationship.bias",
}


def transformers_names(layers: int) -> dict[str, str]:
    """Our parameter name -> that of transformers. The decoder's weight is the word embedding, which is stored once."""
    names = dict(OUTSIDE)
    for layer in range(layers):
        for ours, theirs in LAYER.items():
            for part in ("weight", "bias"):
                names[f"encoder.layers.{layer}.{ours}.{part}"] = f"bert.encoder.layer.{layer}.{theirs}.{part}"
    return names


def write_checkpoint(weights: dict[str, Tensor], *, shape: Shape, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = transformers_names(shape.layers)
    tensors = {names[name]: tensor.to(torch.float16).contiguous() for name, tensor in weights.items()}
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # the writer makes it readable by its owner only
    write_config(shape, path=folder / "config.json")


def read_checkpoint(folder: Path) -> Bert:
    shape = read_config(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    model = Bert(shape)
    ours = {name: tensors[theirs].float() for name, theirs in transformers_names(shape.layers).items()}
    model.load_state_dict(ours, strict=True)
    model.eval()
    return model
