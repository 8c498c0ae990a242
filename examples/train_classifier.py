"""Trains a classifier of texts on the bundled BERT, without PyTorch, as a checkpoint that packbert serves.

    python examples/train_classifier.py ARTIFACT examples/data/reviews.tsv my-classifier

ARTIFACT is the bundled model (`packbert export model_export/sample ARTIFACT`). A line of the file is a label, a tab and
a text. Only the last layer is trained, on the vectors of `pooler`, which takes seconds.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from packbert import Engine

BUNDLED = Path(__file__).parent.parent / "model_export" / "sample"


def fit(vectors: np.ndarray, targets: np.ndarray, penalty: float = 0.3, steps: int = 500) -> tuple[np.ndarray, ...]:
    """Weights [labels, dimensions] and biases [labels] of a logistic regression."""
    mean, spread = vectors.mean(0), vectors.std(0) + 1e-6
    scaled, wanted = (vectors - mean) / spread, np.eye(targets.max() + 1)[targets]
    weights, biases = np.zeros((wanted.shape[1], vectors.shape[1])), np.zeros(wanted.shape[1])
    for _ in range(steps):
        logits = scaled @ weights.T + biases
        shares = np.exp(logits - logits.max(1, keepdims=True))
        error = (shares / shares.sum(1, keepdims=True) - wanted) / len(scaled)
        weights -= 0.1 * (error.T @ scaled + penalty * weights)
        biases -= 0.1 * error.sum(0)
    return weights / spread, biases - weights @ (mean / spread)


def main(artifact: str, file: str, output: str) -> None:
    rows = [line.split("\t") for line in Path(file).read_text("utf-8").splitlines()]
    labels = sorted({label for label, _ in rows})
    targets = np.array([labels.index(label) for label, _ in rows])
    with Engine.from_model(artifact) as engine:
        vectors = np.stack(list(engine.embed_all((text for _, text in rows), pooling="pooler")))
    held_out = np.arange(len(rows)) % 5 == 0
    weights, biases = fit(vectors[~held_out], targets[~held_out])
    right = np.argmax(vectors[held_out] @ weights.T + biases, axis=1) == targets[held_out]
    print(f"{right.sum()} of {len(right)} held-out texts right")

    tensors = load_file(BUNDLED / "model.safetensors")
    tensors = {name: one for name, one in tensors.items() if name.startswith("bert.")}  # without the other heads
    weights, biases = fit(vectors, targets)
    tensors |= {"classifier.weight": weights.astype(np.float16), "classifier.bias": biases.astype(np.float16)}
    shutil.copytree(BUNDLED, output, ignore=shutil.ignore_patterns("README*", "figures.json"))
    save_file(tensors, Path(output) / "model.safetensors")
    config = json.loads((BUNDLED / "config.json").read_text("utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": dict(enumerate(labels))}
    (Path(output) / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
