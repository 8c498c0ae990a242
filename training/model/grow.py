"""Makes a larger start model of a finished one: more layers, and embeddings for the pieces added to its vocabulary.

A new layer is a copy of an old one (Gong et al. 2019, "Efficient training of BERT by progressively stacking", with the
copies next to their originals). The embedding of a new piece is the mean of those of its old pieces, its bias their
smallest. Works on the files in the layout of transformers, without torch.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from training.data.corpus import Array
from training.model.shape import read_config, write_config

WORDS, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.(.+)")


def grow(start: Path, *, larger: Tokenizer, layers: int, output: Path) -> None:
    """Writes config.json and model.safetensors of the larger model into `output`, not the vocabulary.

    `larger` has the pieces of the start's tokenizer under their ids, and more.
    """
    shape = read_config(start / "config.json")
    weights = load_file(start / "model.safetensors")
    grown = {name: array for name, array in weights.items() if not LAYER.fullmatch(name)}
    for layer in range(layers):
        original = layer * shape.layers // layers
        for name, array in weights.items():
            if (found := LAYER.fullmatch(name)) and int(found[1]) == original:
                grown[f"bert.encoder.layer.{layer}.{found[2]}"] = array
    smaller = Tokenizer.from_file(str(start / "tokenizer.json"))
    added = [larger.id_to_token(number) for number in range(shape.vocabulary_size, larger.get_vocab_size())]
    pieces = [one.ids for one in smaller.encode_batch(added, add_special_tokens=False)]
    grown[WORDS] = append(weights[WORDS], [weights[WORDS][ids].mean(0, dtype=np.float32) for ids in pieces])
    grown[BIAS] = append(weights[BIAS], [weights[BIAS][ids].min() for ids in pieces])
    output.mkdir(parents=True, exist_ok=True)
    save_file(grown, output / "model.safetensors", metadata={"format": "pt"})
    size = larger.get_vocab_size()
    write_config(replace(shape, layers=layers, vocabulary_size=size), path=output / "config.json")


def append(array: Array, rows: list[Array]) -> Array:
    return np.concatenate([array, np.asarray(rows, array.dtype).reshape(len(rows), *array.shape[1:])])
