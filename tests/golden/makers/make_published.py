"""Makes the golden checkpoints in the form in which models were published before transformers had their family.

    python tests/golden/makers/make_published.py

It needs what make.py needs. `new` is a GTE model with the names of Alibaba-NLP's, without token types, and with their
fixed NTK scaling of the rotary frequencies (https://kexue.fm/archives/9706), which transformers does not compute: it
gets the scaled frequencies. `nomic-published` is `nomic_bert` with the config of nomic-ai's models.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from checkpoints import BERT, masked
from files import GOLDEN, read_json, write_json
from make import expected, loaded, make
from safetensors.torch import load_file, save_file
from tokenizers_of_families import berts_word_piece

WITHOUT_TYPES = BERT | {"type_vocab_size": 0, "num_hidden_layers": 2}
FACTOR, THETA = 3.0, 700.0
NEW = {"model_type": "new", "rope_theta": THETA, "rope_scaling": {"factor": FACTOR, "type": "ntk"}}
NEW |= {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True}
NOMIC = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
}
NOMIC_SETTINGS = {"activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0}
NOMIC_SETTINGS |= {"prenorm": False, "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False}


def make_new() -> None:
    folder, checkpoint = GOLDEN / "new", masked("Gte", WITHOUT_TYPES, berts_word_piece, segments=0)
    make("new", checkpoint)
    model = loaded(checkpoint.model, folder).double()
    size = model.config.hidden_size // model.config.num_attention_heads
    powers = (THETA * FACTOR) ** (torch.arange(0, size, 2).float() / size)
    model.gte.rotary_emb.inv_freq = 1.0 / powers / FACTOR ** (2 / size)
    np.savez_compressed(folder / "expected.npz", **expected(model, checkpoint))
    rename_weights(folder, "gte.", "new.")
    config = read_json(folder / "config.json")
    del config["rope_parameters"]
    write_json(folder / "config.json", config | NEW, indent=2)
    tokens = read_json(folder / "answers.json")["tokens"]
    (folder / "answers.json").write_text(json.dumps({"tokens": tokens}, ensure_ascii=False), "utf-8")


def make_nomic() -> None:
    folder = GOLDEN / "nomic-published"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(GOLDEN / "nomic_bert", folder)
    config = read_json(folder / "config.json")
    for name in ("rope_parameters", "hidden_act", "head_dim"):
        del config[name]
    config = {NOMIC.get(name, name): value for name, value in config.items()} | NOMIC_SETTINGS
    write_json(folder / "config.json", config, indent=2)
    rename_weights(folder, "nomic_bert.", "bert.")


def rename_weights(folder: Path, prefix: str, published: str) -> None:
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace(prefix, published, 1): weight for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    make_new()
    make_nomic()
