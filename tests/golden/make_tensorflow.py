"""Writes the golden BERT's weights as google-research/bert's checkpoints have them, by TensorFlow itself: tests/golden/bert-tensorflow.

python tests/golden/make_tensorflow.py          needs tensorflow and safetensors
"""

import json
import shutil
from pathlib import Path

import numpy as np
import tensorflow
from safetensors.numpy import load_file

HERE = Path(__file__).parent
RENAMED = {
    "embeddings.weight": "embeddings",
    "LayerNorm.weight": "LayerNorm/gamma",
    "LayerNorm.bias": "LayerNorm/beta",
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "weight": "kernel",
}


def variable(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """TensorFlow's name, and the array as TensorFlow lays it out."""
    ends = next(((end, new) for end, new in RENAMED.items() if name.endswith(end)), ("", ""))
    spelled = (name.removesuffix(ends[0]) + ends[1]).replace(".layer.", ".layer_").replace(".", "/")
    return spelled, array.T if spelled.endswith("/kernel") else array


def main() -> None:
    folder = HERE / "bert-tensorflow"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = json.loads((HERE / "bert" / "config.json").read_text("utf-8"))
    kept = (
        "attention_probs_dropout_prob",
        "hidden_act",
        "hidden_dropout_prob",
        "hidden_size",
        "initializer_range",
        "intermediate_size",
    )
    kept += (
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "type_vocab_size",
        "vocab_size",
    )
    (folder / "bert_config.json").write_text(json.dumps({key: config[key] for key in kept}, indent=2) + "\n", "utf-8")
    shutil.copy(HERE / "bert" / "vocab.txt", folder)
    v1 = tensorflow.compat.v1
    with tensorflow.GraphBuilder().as_default(), v1.Session() as session:
        for name, array in load_file(HERE / "bert" / "model.safetensors").items():
            spelled, laid_out = variable(name, array)
            v1.get_variable(spelled, initializer=laid_out)
        v1.get_variable("bert/pooler/dense/bias/adam_m", initializer=np.ones(32, np.float32))
        v1.get_variable("global_step", initializer=np.int64(1000))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False)
    (folder / "checkpoint").unlink()


if __name__ == "__main__":
    main()
