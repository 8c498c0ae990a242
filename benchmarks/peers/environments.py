"""Makes, once, an environment for each peer and one model folder for all, under build/peers."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.engine.process import OFFLINE
from benchmarks.harness import environments
from benchmarks.harness.checkpoints import checkpoint

BUILD = Path("build/peers").resolve()
VARIABLES = OFFLINE | {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HOME": str(BUILD / "home")}
MODULES = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
POOLING = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
FUSED = "fused.graph"  # written by graphs.py


def programs(name: str) -> Path:
    """The bin folder of the environment that `NAME.txt` describes."""
    return environments.programs(Path(__file__).parent / f"{name}.txt", BUILD / name)


def model(size: str, tokenizer: Path) -> Path:
    """The folder that all peers read: the checkpoint in the layout of sentence-transformers (mean pooling, unit norm),
    its ONNX export, and the export fused by ONNX Runtime.
    """
    folder, source = BUILD / f"model-{size}", checkpoint(size)
    if not (folder / FUSED).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in (source / "model.safetensors", source / "vocab.txt", tokenizer):
            shutil.copy(file, folder)
        _describe(folder, json.loads((source / "config.json").read_text()))
        python = programs("infinity") / "python"
        subprocess.run([python, "-m", "benchmarks.peers.graphs", source, folder], check=True)
    return folder


def _describe(folder: Path, config: dict[str, Any]) -> None:
    longest, hidden = config["max_position_embeddings"], config["hidden_size"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(MODULES.items())
    ]
    files = {
        "config.json": config | {"architectures": ["BertModel"]},  # what the candle wheel accepts
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
        "1_Pooling/config.json": POOLING | {"word_embedding_dimension": hidden},
        "2_Normalize/config.json": {},
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer",
            "model_max_length": longest,
            "do_lower_case": True,
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
