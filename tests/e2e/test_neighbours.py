"""A text gets the same bits alone and in any batch, in fp32 and in int8."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.harness.checkpoints import REST, SIZES, weights
from packbert.model_export.artifact.batch import LAST, LAYER_OUTPUTS, Row, Tokens
from packbert.model_export.artifact.cpu import BF16, why_bf16_unavailable
from packbert.model_export.export import export
from packbert.service.engine.device import select_artifact
from packbert.service.errors import DeviceError
from tests.export.goldens import Artifact, edit, write_json
from tests.paths import SAMPLE
from tests.service.engine.runners import PER_CORE, open_runner

FILL = frozenset({"top_logits", "top_ids", "log_sum_exp"})
SPARSE = frozenset({"sparse_places", "sparse_logits"})
LAYERS = frozenset({"layer_tokens"})
OUTPUTS = [
    frozenset({"cls"}),
    frozenset({"pooler", "pair"}),
    FILL,
    FILL | {"target_logits"},
    frozenset({"mean"}),
    frozenset({"cls", "mean"}),
    frozenset({"tokens"}),
    SPARSE,
    SPARSE | {"mean"},
    LAYERS,
    frozenset({"layer_cls", "layer_mean", "cls"}),
    frozenset({"attention"}),
]
HIDDEN = json.loads((SAMPLE / "config.json").read_text("utf-8"))["hidden_size"]
HEADS = {  # output -> the class, its weights, their number of rows
    "labels": ("BertForSequenceClassification", "classifier", 9),
    "tags": ("BertForTokenClassification", "classifier", 9),
    "spans": ("BertForQuestionAnswering", "qa_outputs", 2),
    "choices": ("BertForMultipleChoice", "classifier", 1),
}


def sequences(vocabulary: int, longest: int) -> list[Tokens]:
    """Texts of all length classes, which together ask for every output."""
    random, result = np.random.default_rng(7), list[Tokens]()
    for i, length in enumerate([*range(2, 40), *random.integers(40, longest + 1, 12).tolist()]):
        outputs = OUTPUTS[i % len(OUTPUTS)]
        masks = tuple(sorted(random.choice(length, min(length, 2), replace=False).tolist())) if outputs >= FILL else ()
        ids = random.integers(5, vocabulary, length, dtype=np.int32)
        text = Tokens(ids=ids, types=ids % 2, outputs=outputs, masks=masks, top_k=1 + i % 90)
        targets = (6, 9) if "target_logits" in outputs else ()
        layers = (1, 0) if "attention" in outputs else (LAST, 0, 1) if outputs & LAYER_OUTPUTS else ()
        result.append(replace(text, targets=targets, layers=layers))
    return result


def own_candidates(text: Tokens, row: Row | None) -> Row:
    """`row` without the candidates that only another text of the batch asked for; empty if it is not finite.

    Of the places of sparse weights only the ids: which part of the batch a text ends in is no answer.
    """
    row = row or {}
    own = {name: array[:, : text.top_k] if name in ("top_logits", "top_ids") else array for name, array in row.items()}
    return own | {name: array[:, 1] for name, array in own.items() if name == "sparse_places"}


def equal(one: Row | None, other: Row | None) -> bool:
    """Both are finite and have the same bits."""
    if not one or not other:
        return False
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def check(folder: Path, texts: list[Tokens]) -> None:
    """Batches on all cores and in a per-core session give each text what it gets alone."""
    with open_runner(folder, concurrency=PER_CORE) as runner:
        alone = [runner.run_sync([text])[0][0] for text in texts]
        random = np.random.default_rng(8)
        for all_cores in (True, False):
            for batch in np.array_split(random.permutation(len(texts)), 4):
                rows, _ = runner.run_sync([texts[i] for i in batch], all_cores=all_cores)
                changed = [
                    len(texts[i])
                    for i, row in zip(batch, rows, strict=True)
                    if not equal(own_candidates(texts[i], row), own_candidates(texts[i], alone[i]))
                ]
                assert changed == [], "lengths of the texts whose answer changed in the batch"


@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
@pytest.mark.parametrize("checkpoint", ["bert", "sample"], ids=["golden", "sample"])
def test_an_answer_does_not_depend_on_its_batch(
    checkpoint: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    folder, manifest = (artifact := exported(checkpoint, precision)).root, artifact.manifest
    if precision == BF16 and (fault := why_bf16_unavailable()):  # where OpenVINO's answers may change with the batch
        with pytest.raises(DeviceError, match=fault):
            select_artifact(folder, "cpu")
        return
    check(folder, sequences(manifest.sizes["vocabulary"], min(400, manifest.max_tokens)))


def simple(vocabulary: int, longest: int, outputs: Sequence[frozenset[str]], *, prompts: bool = False) -> list[Tokens]:
    """Texts of all length classes, some with a prompt that is left out."""
    random = np.random.default_rng(7)
    lengths = [*range(3, 40, 2), *random.integers(40, longest + 1, 8).tolist()]
    firsts = [int(random.integers(0, n - 1)) if prompts and i % 3 == 0 else 0 for i, n in enumerate(lengths)]
    ids = [random.integers(5, vocabulary, length, dtype=np.int32) for length in lengths]
    return [
        Tokens(ids=one, types=one % 2 * (not prompts), outputs=outputs[i % len(outputs)], pooled_from=firsts[i])
        for i, one in enumerate(ids)
    ]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["all-modes", "deep", "last-token", "max"])
def test_a_sentence_vector_does_not_depend_on_its_batch(
    name: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    asked = ("sentence", "sentence cls", "sentence mean", "cls", "mean", "sentence pooler")
    folder, manifest = (artifact := exported(f"sentence-transformers/{name}", precision)).root, artifact.manifest
    outputs = [frozenset(one.split()) for one in asked]
    check(folder, simple(manifest.sizes["vocabulary"], manifest.max_tokens, outputs, prompts=True))


def classifier(folder: Path, output: str) -> Path:
    """Two layers of the sample with a classifier of random weights, as fine-tuning stores it."""
    shutil.copytree(SAMPLE, folder)
    random, stored = np.random.default_rng(3), load_file(SAMPLE / "model.safetensors")
    weights = {name: array for name, array in stored.items() if re.match(r"bert\.(?!encoder\.layer\.[2-9])", name)}
    architecture, name, rows = HEADS[output]
    weights[f"{name}.weight"] = (0.05 * random.standard_normal((rows, HIDDEN))).astype(np.float32)
    weights[f"{name}.bias"] = random.standard_normal(rows).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    labels = {str(number): f"label {number}" for number in range(rows)}
    edit(folder / "config.json", architectures=[architecture], id2label=labels, num_hidden_layers=2)
    return folder


@pytest.mark.parametrize(
    ("output", "precision"),
    [("labels", "fp32"), ("tags", "int8"), ("spans", "fp32"), ("choices", "int8")],
)
def test_a_classifiers_answer_does_not_depend_on_its_batch(output: str, precision: str, tmp_path: Path) -> None:
    export(classifier(tmp_path / "checkpoint", output), tmp_path / "artifact", precision=precision)
    check(
        tmp_path / "artifact",
        simple(16_384, 400, [frozenset({output}), frozenset({"mean"}), frozenset({output, "cls"})]),
    )


def test_long_texts_keep_their_bits_with_few_heads_and_channels(tmp_path: Path) -> None:
    """With few channels the products add up larger blocks, or are divided among threads by channel."""
    config = SIZES["tiny"] | {"hidden_size": 128, "intermediate_size": 256}
    positions = np.random.default_rng(9).normal(0, 0.02, (1024, 128)).astype(np.float32)
    save_file(
        weights(config) | {"bert.embeddings.position_embeddings.weight": positions}, tmp_path / "model.safetensors"
    )
    write_json(tmp_path / "config.json", REST | config | {"max_position_embeddings": 1024})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]), "utf-8")
    export(tmp_path, tmp_path / "artifact")
    random, choices = np.random.default_rng(7), (frozenset({"cls"}), frozenset({"mean"}))
    ids = [random.integers(5, 1024, length, dtype=np.int32) for length in (1000, 300, 200, 40, 17, 700, 150)]
    texts = [Tokens(ids=one, types=np.zeros_like(one), outputs=outputs) for one in ids for outputs in choices]
    answers = []
    for threads in (1, 2):
        with open_runner(tmp_path / "artifact", threads) as runner:
            answers += [[runner.run_sync([text])[0][0] for text in texts], runner.run_sync(texts)[0]]
    for rows in zip(*answers, strict=True):
        assert all(equal(row, rows[0]) for row in rows)
