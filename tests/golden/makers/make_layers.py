"""Makes the golden hidden states of all layers: `layers/FAMILY.npz` for the golden checkpoint of each family.

    python tests/golden/makers/make_layers.py

It needs torch and transformers; the tests need neither. For the text number i, `i.states` [layers + 1, tokens, hidden]
are `output_hidden_states`, and `i.words` [tokens] is `word_ids`, -1 for special tokens.
"""

import numpy as np
import torch
import transformers
from checkpoints import CHECKPOINTS, FAMILIES
from files import GOLDEN, write_arrays
from make import loaded, tokenizer_of
from texts import TEXTS


def make(name: str) -> None:
    folder, tokenizer = GOLDEN / name, tokenizer_of(CHECKPOINTS[name], GOLDEN / name)
    model = loaded(transformers.AutoModel, folder)
    arrays = {}
    for i, text in enumerate(TEXTS[:6]):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**encoded, output_hidden_states=True).hidden_states
        arrays[f"{i}.states"] = np.stack([one[0].numpy() for one in states])
        arrays[f"{i}.words"] = np.array([-1 if word is None else word for word in encoded.word_ids()], np.int32)
    write_arrays(GOLDEN / "layers" / f"{name}.npz", arrays)


if __name__ == "__main__":
    for name in FAMILIES:
        make(name)
