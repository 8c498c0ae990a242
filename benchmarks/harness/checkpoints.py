"""Makes checkpoints to measure with: a BERT of any size with random weights, and its artifact.

Random weights cost what trained ones cost. They are made once and kept under `build/benchmarks`.
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import packbert.model_export
from packbert.model_export.build import PRECISIONS
from packbert.model_export.export import export
from packbert.model_export.part_names import BERT_PARTS

BUILD = Path("build/benchmarks")
SAMPLE = Path(__file__).parents[2] / "model_export" / "sample"  # the bundled model's checkpoint
FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = {
    size: dict(zip(FIELDS, numbers, strict=True))
    for size, numbers in {
        "base": (768, 12, 12, 3072, 30522),
        "large": (1024, 24, 16, 4096, 30522),
        "small": (256, 4, 4, 1024, 16384),
        "tiny": (64, 2, 2, 128, 1024),
    }.items()
}
POSITIONS, SEGMENTS = 512, 2
SEED = 5  # of the weights
REST = {  # what all sizes share
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": SEGMENTS,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
ARTIFACT_HELP = "a folder, or fp32 or int8: BERT-base with random weights"  # of `artifact_to_serve`
Arrays = dict[str, np.ndarray]


def checkpoint(size: str) -> Path:
    """The folder of the random checkpoint `size`, a key of SIZES; it has all heads."""
    folder = BUILD / size
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        config = SIZES[size]
        save_file(weights(config), folder / "model.safetensors", metadata={"format": "pt"})
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words += [f"w{i}" for i in range(len(words), config["vocab_size"])]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        (folder / "config.json").write_text(json.dumps(REST | config))
    return folder


def artifact(size: str, precision: str, device: str = "cpu") -> Path:
    """The folder of an artifact; exports it again when the exporter's sources have changed.

    Raises ExportError if this machine cannot make or run `precision`.
    """
    folder = artifact_folder(size, precision)
    made = BUILD / f"{size}-{precision}-{device}.exporter"  # beside the folder, which the exporter wants to itself
    if not made.is_file() or made.read_text() != exporter_digest():
        shutil.rmtree(folder / device, ignore_errors=True)
        export(checkpoint(size), folder, precision=precision, device=device)
        made.write_text(exporter_digest())
    return folder


def artifact_folder(size: str, precision: str) -> Path:
    """Where `artifact` writes."""
    return BUILD / f"{size}-{precision}"


def exporter_digest() -> str:
    """The SHA-256 of the exporter's sources."""
    digest = hashlib.sha256()
    for path in sorted(Path(packbert.model_export.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def artifact_to_serve(name: str) -> Path:
    """The artifact to serve: BERT-base with random weights if `name` is a precision, otherwise the folder `name`."""
    return artifact("base", name) if name in PRECISIONS else Path(name)


def weights(config: dict[str, int]) -> Arrays:
    """BERT's initialization, but with biases other than 0 and norms other than 1, so that a missing one shows."""
    random = np.random.default_rng(SEED)
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]

    def normal(*shape: int, mean: float = 0.0, deviation: float = 0.02) -> np.ndarray:
        return random.normal(mean, deviation, shape).astype(np.float32)

    def dense(name: str, out: int, width: int) -> Arrays:
        return {f"{name}.weight": normal(out, width), f"{name}.bias": normal(out)}

    def norm(name: str) -> Arrays:
        return {f"{name}.weight": normal(hidden, mean=1.0, deviation=0.1), f"{name}.bias": normal(hidden)}

    tables = {"word": vocabulary, "position": POSITIONS, "segment": SEGMENTS}
    arrays = {f"bert.{BERT_PARTS[part]}.weight": normal(rows, hidden) for part, rows in tables.items()}
    arrays |= norm(f"bert.{BERT_PARTS['embedding_norm']}")
    shapes = dict.fromkeys(("query", "key", "value", "attention"), (hidden, hidden)) | {
        "intermediate": (inner, hidden),
        "output": (hidden, inner),
    }
    for i in range(config["num_hidden_layers"]):
        for part, name in BERT_PARTS.items():
            if "{i}" not in name:
                continue
            path = "bert." + name.format(i=i)
            arrays |= dense(path, *shapes[part]) if part in shapes else norm(path)
    arrays |= dense("bert.pooler.dense", hidden, hidden) | dense("cls.seq_relationship", 2, hidden)
    arrays |= dense("cls.predictions.transform.dense", hidden, hidden) | norm("cls.predictions.transform.LayerNorm")
    return arrays | {"cls.predictions.bias": normal(vocabulary)}
