"""The artifact of each golden checkpoint gives transformers' answers: all heads, lengths 2 to 130 in one batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer

from docs.tools import families
from docs.tools.marks import fill
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.checkpoint import Checkpoint, NamedWeights
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.verification.reference import Reference
from tests.export.goldens import (
    HEADS,
    NAMES,
    Artifact,
    answers,
    changed,
    distance,
    expected,
    hidden_states,
    outputs_of,
    requests_of_all_heads,
)
from tests.paths import GOLDEN, ROOT

FP32_TOLERANCE = 1e-5
SMALLEST_COSINE = 0.999  # int8
SMALLEST_COSINE_OF_A_HEAD = 0.998  # with 32 channels, an error in one of them weighs more
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129)  # and the limit
MISSING = {
    "roberta": {
        "pooler": "the checkpoint has no weights of a pooler",
        "pair": "family roberta has no sentence-pair head",
    },
    "distilbert": {"pooler": "family distilbert has no pooler", "pair": "family distilbert has no sentence-pair head"},
    "electra": {"pooler": "family electra has no pooler", "pair": "family electra has no sentence-pair head"},
    "electra-discriminator": {
        "fill_mask": "the checkpoint has no weights of a masked-LM head",
        "replaced_tokens": "the checkpoint has this head, but no task uses it",
    },
    "bert-tags": {
        "pooler": "the checkpoint has no weights of a pooler",
        "labels": "the checkpoint has no classifier of texts",
        "spans": "the checkpoint has no weights of a question-answering head",
        "choices": "the checkpoint has no multiple-choice head",
    },
}
FACTS: dict[str, dict[str, Any]] = {  # of the manifest
    "bert": {"pair_labels": ("is_next", "not_next")},
    "ernie": {"pair_labels": ("is_next", "not_next")},
    "albert": {"pair_labels": ("in_order", "swapped")},
    "roberta": {"max_tokens": 144},  # of 146: positions before the family's offset do not count
    "bert-labels": {"labels": ("bad", "fair", "good"), "label_scores": "softmax"},
    "roberta-labels": {"labels": ("bad", "fair", "good"), "label_scores": "sigmoid"},
    "distilbert-labels": {"labels": ("grade",), "label_scores": "none"},
}
ENCODERS = [name for name in NAMES if "hidden" in expected(name)[0]]


def compute(artifact: Artifact, sequences: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The artifact's outputs per sequence, in the shapes of expected.npz."""
    rows = artifact.run(requests_of_all_heads(sequences, artifact.manifest.sizes["vocabulary"]))
    return [outputs_of(sequence, row) for sequence, row in zip(sequences, rows, strict=True)]


def cosine(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows."""
    got, want = (np.asarray(a, np.float64).reshape(-1, a.shape[-1]) for a in (got, want))
    return np.asarray((got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_every_head_in_fp32_equals_transformers_for_mixed_lengths_in_one_batch(name: str, exported: Callable) -> None:
    sequences = expected(name)
    heads = {head for head in HEADS if head in sequences[0]}
    for got, want in zip(compute(exported(name), sequences), sequences, strict=True):
        assert set(got) == heads
        for head in heads:
            assert distance(got[head], want[head]) <= 1, head


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_of_every_token_equal_transformers_and_of_all_lengths_the_reference(
    name: str, exported: Callable
) -> None:
    sequences = expected(name)
    for got, want in zip(hidden_states(exported(name), sequences), sequences, strict=True):
        assert np.abs(got - want["hidden"]).max() <= FP32_TOLERANCE
    reference, random = Reference(NamedWeights(Checkpoint(GOLDEN / name))), np.random.default_rng(3)
    sizes = reference.architecture
    ids = [random.integers(10, sizes.vocabulary, n, dtype=np.int32) for n in (*LENGTHS, sizes.positions)]
    asked = [{"ids": one, "types": np.zeros_like(one)} for one in ids]
    for got, exact in zip(hidden_states(exported(name), asked), reference.hidden_states(ids), strict=True):
        assert np.abs(got - exact).max() <= FP32_TOLERANCE, len(got)


@pytest.mark.parametrize("name", NAMES)
def test_int8_has_the_direction_of_transformers(name: str, exported: Callable) -> None:
    """By row for vectors; by head for its two to five logits, which are too few for a cosine each."""
    artifact, sequences = exported(name, "int8"), expected(name)
    if name in ENCODERS:
        for states, want in zip(hidden_states(artifact, sequences), sequences, strict=True):
            assert cosine(states, want["hidden"]).min() >= SMALLEST_COSINE
    got = compute(artifact, sequences)
    for head in got[0]:
        both = [np.concatenate([np.atleast_2d(s[head]) for s in side]) for side in (got, sequences)]
        together = both if head in ("pooler", "vocabulary") else [logits.reshape(1, -1) for logits in both]
        assert cosine(*together).min() >= SMALLEST_COSINE_OF_A_HEAD, head


@pytest.mark.parametrize("name", NAMES)
def test_the_exported_tokenizer_gives_the_ids_and_types_of_transformers(name: str, exported: Callable) -> None:
    tokenizer = Tokenizer.from_file(str(exported(name).folder / "tokenizer.json"))
    for case in answers(name)["tokens"]:
        encoding = tokenizer.encode(case["text"], case["text_pair"])
        assert (encoding.ids, encoding.type_ids) == (case["ids"], case["types"]), case["text"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    "name",
    [
        *("albert", "ernie", "mpnet", "modernbert", "modernbert-tags", "bert-tags", "roberta-labels", "electra-labels"),
        *("roberta-spans", "electra-choices", "deberta-v2", "deberta-v2-convolution", "deberta-v2-one-term"),
        *("jina_bert", "jina_bert-tags", "jina_bert_code", "roformer", "roformer-values"),
    ],
)
def test_every_head_gives_the_same_bits_alone_and_in_a_batch(name: str, precision: str, exported: Callable) -> None:
    artifact, sequences = exported(name, precision), expected(name)
    for alone, together in zip(
        [compute(artifact, [one])[0] for one in sequences], compute(artifact, sequences), strict=True
    ):
        for head, answer in alone.items():
            assert np.array_equal(answer, together[head]), head


@pytest.mark.parametrize("name", ["mpnet", "jina_bert", "jina_bert_code"])
def test_families_with_a_bias_by_distance_are_built_in_bf16_too(name: str, exported: Callable) -> None:
    figures = exported(name, "bf16").manifest.verification
    assert min(figures["cls_smallest_cosine"], figures["mean_smallest_cosine"]) >= SMALLEST_COSINE


@pytest.mark.parametrize("name", NAMES)
def test_a_special_tokens_name_in_a_text_is_plain_text(name: str, exported: Callable) -> None:
    artifact = exported(name)
    tokenizer = Tokenizer.from_file(str(artifact.folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    special = {number for what, number in artifact.manifest.special_tokens.items() if what != "unk"}
    for number in special:
        for text in ("a {} b", "a{}b", "{}"):
            ids = tokenizer.encode(text.format(tokenizer.id_to_token(number)), add_special_tokens=False).ids
            assert ids, text
            assert not special & set(ids), text


@pytest.mark.parametrize("name", sorted(MISSING))
def test_a_missing_head_is_reported_with_its_reason(name: str, exported: Callable) -> None:
    missing = exported(name).manifest.missing
    assert {head: missing[head] for head in MISSING[name]} == MISSING[name]


@pytest.mark.parametrize(("name", "facts"), FACTS.items(), ids=FACTS)
def test_the_manifest_has_the_facts_of_the_checkpoint(name: str, facts: dict[str, Any], exported: Callable) -> None:
    manifest = exported(name).manifest
    assert {fact: getattr(manifest, fact) for fact in facts} == facts


def test_layers_that_share_weights_are_stored_once(exported: Callable) -> None:
    weights = exported("albert").folder / "model.onnx.data"
    assert weights.stat().st_size < 1.1 * (GOLDEN / "albert" / "model.safetensors").stat().st_size
    tensors = onnx.load(exported("albert", "int8").folder / MODEL, load_external_data=False).graph.initializer
    codes = [one.name.split("/")[0] for one in tensors if one.data_type == onnx.TensorProto.INT8]
    assert {name for name in codes if name.startswith("layers.")} == {"layers.0", "layers.2"}  # two groups


def test_the_table_of_families_matches_the_artifacts(exported: Callable) -> None:
    page = (ROOT / "docs" / "reference" / "families.md").read_text("utf-8")
    made = families.families_table(lambda name: exported(name).manifest)
    assert fill(page, {"families": lambda: made}) == page, "run `make docs`"


@pytest.mark.parametrize(
    ("family", "head"),
    [(family, head) for family in families.FAMILIES for head in ("spans", "choices") if f"{family}-{head}" in NAMES],
)
def test_a_fine_tuned_artifact_has_its_head_verified_and_no_other(family: str, head: str, exported: Callable) -> None:
    manifest = exported(f"{family}-{head}").manifest
    assert set(manifest.heads) - {"cls", "mean", "tokens", "layers", "pooler", "attention"} == {head}
    assert manifest.verification[f"{head}_max_abs_error"] < FP32_TOLERANCE
    assert manifest.labels == ()


@pytest.mark.parametrize(
    ("family", "stated", "read"), [("electra", {"summary_type": "mean"}, "mean"), ("roformer", {}, "last")]
)
def test_a_multiple_choice_head_that_does_not_read_cls_is_refused(
    family: str, stated: dict[str, str], read: str, tmp_path: Path
) -> None:
    source = changed(f"{family}-choices", tmp_path / "checkpoint", ["summary_type"], **stated)
    with pytest.raises(ExportError, match=f"sets summary_type to '{read}'; of a multiple-choice head only 'first' is"):
        export(source, tmp_path / "artifact")
