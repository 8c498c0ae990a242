"""Makes the hidden states of all layers and the attention of transformers for the golden checkpoint of each family.

    python tests/golden/makers/make_layers.py

It needs torch and transformers; the tests need neither. Of the text number i, `layers/FAMILY.npz` has `i.states`, which
are `output_hidden_states` [layers + 1, tokens, hidden], and `i.words` [tokens], which is `word_ids`, -1 for special
tokens. `attention/FAMILY.npz` holds, for case i: `i.ids`, `i.types` [length], `i.attention` [layers, heads, length,
length], and `i.rollout` [length, length], the attention rollout over all layers as in the code of Abnar & Zuidema
(2020). Its first cases are sequences of expected.npz, the last is the pair PAIR as the checkpoint's tokenizer makes it;
its model is in float64, the arrays are rounded to float32.
"""

import numpy as np
import torch
import transformers
from checkpoints import CHECKPOINTS, FAMILIES
from files import GOLDEN, write_arrays
from make import feeds_of, loaded, tokenizer_of
from texts import TEXTS

LONGEST = 33  # tokens: the files stay small
PAIR = ("the dog ran home", "it was very tired")


def rollout(attention: np.ndarray) -> np.ndarray:
    """[layers, heads, length, length] -> [length, length]"""
    averaged = attention.sum(axis=1) / attention.shape[1]
    with_residual = averaged + np.eye(averaged.shape[1])[None]
    with_residual = with_residual / with_residual.sum(axis=-1)[..., None]
    joint = with_residual[0]
    for layer in with_residual[1:]:
        joint = layer.dot(joint)
    return joint


def make_states(name: str) -> None:
    folder, tokenizer = GOLDEN / name, tokenizer_of(CHECKPOINTS[name], GOLDEN / name)
    model = loaded(transformers.AutoModel, folder)
    arrays = {}
    for i, text in enumerate(TEXTS[:6]):
        encoded = tokenizer(text, return_tensors="pt")
        states = model(**encoded, output_hidden_states=True).hidden_states
        arrays[f"{i}.states"] = np.stack([one[0].numpy() for one in states])
        arrays[f"{i}.words"] = np.array([-1 if word is None else word for word in encoded.word_ids()], np.int32)
    write_arrays(GOLDEN / "layers" / f"{name}.npz", arrays)


def make_attention(name: str) -> None:
    checkpoint, folder = CHECKPOINTS[name], GOLDEN / name
    model = checkpoint.model.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    stored = np.load(folder / "expected.npz")
    numbers = sorted({int(key.split(".")[0]) for key in stored})
    cases = [(stored[f"{i}.ids"], stored[f"{i}.types"]) for i in numbers if len(stored[f"{i}.ids"]) <= LONGEST]
    pair = tokenizer_of(checkpoint, folder)(*PAIR, return_token_type_ids=True)
    cases.append((np.array(pair["input_ids"], np.int32), np.array(pair["token_type_ids"], np.int32)))
    result: dict[str, np.ndarray] = {}
    for i, (ids, types) in enumerate(cases):
        found = model(**feeds_of(ids, types, checkpoint), output_attentions=True).attentions
        attention = np.stack([layer[0].numpy() for layer in found])
        arrays = {"attention": attention.astype(np.float32), "rollout": rollout(attention).astype(np.float32)}
        result |= {f"{i}.{key}": value for key, value in ({"ids": ids, "types": types} | arrays).items()}
    write_arrays(GOLDEN / "attention" / f"{name}.npz", result)


if __name__ == "__main__":
    for family in FAMILIES:
        make_states(family)
        make_attention(family)
