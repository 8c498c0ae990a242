"""Fine-tuned models give the same bits in any batch: the bundled model with a classifier of random weights."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.scheduling.cores import Concurrency
from tests.e2e.test_neighbours import equal
from tests.paths import SAMPLE

HEADS = {  # output -> the class, its weights, their number of rows
    "labels": ("BertForSequenceClassification", "classifier", 9),
    "tags": ("BertForTokenClassification", "classifier", 9),
    "spans": ("BertForQuestionAnswering", "qa_outputs", 2),
    "choices": ("BertForMultipleChoice", "classifier", 1),
}


def classifier(folder: Path, output: str) -> Path:
    """The sample with a classifier in place of its heads, as fine-tuning stores it."""
    shutil.copytree(SAMPLE, folder)
    random = np.random.default_rng(3)
    weights = {
        name: array for name, array in load_file(SAMPLE / "model.safetensors").items() if name.startswith("bert.")
    }
    config = json.loads((SAMPLE / "config.json").read_text("utf-8"))
    architecture, name, rows = HEADS[output]
    weights[f"{name}.weight"] = (0.05 * random.standard_normal((rows, config["hidden_size"]))).astype(np.float32)
    weights[f"{name}.bias"] = random.standard_normal(rows).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    named = {
        "architectures": [architecture],
        "id2label": {str(number): f"label {number}" for number in range(rows)},
    }
    (folder / "config.json").write_text(json.dumps(config | named), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("output", "precision"),
    [("labels", "fp32"), ("tags", "int8"), ("spans", "fp32"), ("spans", "int8"), ("choices", "int8")],
)
def test_a_classifiers_answer_does_not_depend_on_its_batch(output: str, precision: str, tmp_path: Path) -> None:
    export(classifier(tmp_path / "checkpoint", output), tmp_path / "artifact", precision=precision)
    runner = ModelRunner(open_artifact(tmp_path / "artifact"), threads=2, concurrency=Concurrency(2, per_core=True))
    runner.open()
    random, asks = np.random.default_rng(7), (frozenset({output}), frozenset({"mean"}), frozenset({output, "cls"}))
    ids = [
        random.integers(5, 16_384, length, dtype=np.int32) for length in (*range(2, 40), *random.integers(40, 401, 26))
    ]
    texts = [Tokens(ids=one, types=one % 2, outputs=asks[i % len(asks)]) for i, one in enumerate(ids)]
    alone = [runner.run_sync([text])[0][0] for text in texts]
    for all_cores in (True, False):  # on all cores, and in a per-core session
        for batch in np.array_split(random.permutation(len(texts)), 4):
            rows, _ = runner.run_sync([texts[i] for i in batch], all_cores=all_cores)
            changed = [len(texts[i]) for i, row in zip(batch, rows, strict=True) if not equal(row, alone[i])]
            assert changed == [], "lengths of the texts whose answer changed in the batch"
    runner.close()
