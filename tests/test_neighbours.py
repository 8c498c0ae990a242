"""The promise that no peer makes: a text gets the same bits alone and among any others, in fp32 and in int8."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_export.batch import Row, Tokens
from model_export.export import export
from service.artifact import open_artifact
from service.plan import Plan
from service.runtime import Runtime

GOLDEN = Path(__file__).parent / "golden" / "bert"
SAMPLE = Path(__file__).parent.parent / "model_export" / "sample"
FILL = frozenset({"top_logits", "top_ids", "log_sum_exp"})
POOLED = [frozenset({"mean"}), frozenset({"cls", "mean"})]
PRETRAINED = [frozenset({"cls"}), frozenset({"pooler", "pair"}), FILL, FILL | {"target_logits"}, *POOLED]
LABELS = 9  # of the classifiers


def classifier(folder: Path, output: str) -> Path:
    """The sample with a classifier of random weights in place of its heads, as fine-tuning stores it: of texts ("labels") or of tokens ("tags")."""
    shutil.copytree(SAMPLE, folder)
    random = np.random.default_rng(3)
    weights = {name: array for name, array in load_file(SAMPLE / "model.safetensors").items() if name.startswith("bert.")}
    config = json.loads((SAMPLE / "config.json").read_text("utf-8"))
    weights["classifier.weight"] = (0.05 * random.standard_normal((LABELS, config["hidden_size"]))).astype(np.float32)
    weights["classifier.bias"] = random.standard_normal(LABELS).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    kind = {"labels": "BertForSequenceClassification", "tags": "BertForTokenClassification"}[output]
    named = {"architectures": [kind], "id2label": {str(number): f"label {number}" for number in range(LABELS)}}
    (folder / "config.json").write_text(json.dumps(config | named), "utf-8")
    return folder


def sequences(vocabulary: int, longest: int, asks: Sequence[frozenset[str]]) -> list[Tokens]:
    """Texts of every length class, asking for everything there is."""
    random = np.random.default_rng(7)
    lengths = [*range(2, 40), *random.integers(40, longest + 1, 26).tolist()]
    result = []
    for i, length in enumerate(lengths):
        outputs = asks[i % len(asks)]
        masks = tuple(sorted(random.choice(length, min(length, 2), replace=False).tolist())) if outputs >= FILL else ()
        ids = random.integers(5, vocabulary, length, dtype=np.int32)
        targets = (6, 9) if "target_logits" in outputs else ()
        result.append(Tokens(ids=ids, types=(ids % 2).astype(np.int32), outputs=outputs, masks=masks, top_k=1 + i % 90, targets=targets))
    return result


def asked(text: Tokens, row: Row) -> Row:
    """Without the candidates that only a neighbour asked for."""
    return {name: array[:, : text.top_k] if name in ("top_logits", "top_ids") else array for name, array in row.items()}


def equal(one: Row, other: Row) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def assert_the_same_in_any_company(checkpoint: Path, artifact: Path, precision: str, asks: Sequence[frozenset[str]]) -> None:
    export(checkpoint, artifact, precision=precision)
    runtime = Runtime(open_artifact(artifact), threads=2, plan=Plan(2, lanes=True))
    runtime.open()
    manifest = runtime.artifact.manifest
    texts = sequences(manifest.sizes["vocabulary"], min(400, manifest.max_tokens), asks)
    alone = [runtime.run_here([text])[0][0] for text in texts]
    random = np.random.default_rng(8)
    for whole in (True, False, False):  # on all cores, and in a lane
        order = random.permutation(len(texts))
        for company in np.array_split(order, 4):
            rows, _ = runtime.run_here([texts[i] for i in company], whole=whole)
            changed = [len(texts[i]) for i, row in zip(company, rows, strict=True) if not equal(asked(texts[i], row), alone[i])]
            assert changed == [], "lengths of the texts whose answer changed in company"
    runtime.close()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("checkpoint", [GOLDEN, SAMPLE], ids=["golden", "sample"])
def test_an_answer_does_not_depend_on_its_neighbours(checkpoint: Path, precision: str, tmp_path: Path) -> None:
    assert_the_same_in_any_company(checkpoint, tmp_path / "artifact", precision, PRETRAINED)


@pytest.mark.parametrize(("output", "precision"), [("labels", "fp32"), ("tags", "int8")])
def test_nor_does_that_of_a_classifier(output: str, precision: str, tmp_path: Path) -> None:
    checkpoint = classifier(tmp_path / "checkpoint", output)
    assert_the_same_in_any_company(checkpoint, tmp_path / "artifact", precision, [frozenset({output}), *POOLED, frozenset({output, "cls"})])
