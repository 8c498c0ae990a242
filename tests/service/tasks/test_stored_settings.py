"""What a checkpoint stores beside its weights decides the answers: similarity, truncation, activation, segments."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid
from packbert.service.settings import Settings
from packbert.service.tasks.embed import embed, similarity
from packbert.service.tasks.flow import Read, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest, NspRequest, RerankFields, SimilarityRequest
from packbert.service.tasks.pairs import nsp, rerank, score_pairs
from tests import sentence_transformers
from tests.paths import GOLDEN
from tests.service.in_process import open_tasks

KEPT = 12  # truncate_dim of the golden checkpoint "truncated"


@contextmanager
def served(checkpoint: Path, **settings: str) -> Iterator[Tasks]:
    folder = checkpoint.with_name("artifact")
    export(checkpoint, folder)
    chosen = Settings.from_environment({"BERT_MODEL": str(folder), "BERT_TRUNCATE": "true"} | settings)
    with open_tasks(open_artifact(folder), chosen) as tasks:
        yield tasks


def ask(tasks: Tasks, read: Read, request: object) -> Any:
    return asyncio.run(answer_request(tasks, read, request)).value


def changed(folder: Path, name: str, **keys: object) -> Path:
    shutil.copytree(GOLDEN / name, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | keys), "utf-8")
    return folder


@pytest.mark.parametrize("name", ["truncated", "euclidean", "manhattan"])
def test_similarities_are_those_of_the_checkpoints_function(name: str, tmp_path: Path) -> None:
    answers = sentence_transformers.answers(name)
    first, *others = answers["texts"]
    with served(sentence_transformers.checkpoint(name, tmp_path / "checkpoint"), BERT_RERANK="cosine") as tasks:
        asked = SimilarityRequest.model_validate({"inputs": {"source_sentence": first, "sentences": others}})
        found, fields = ask(tasks, similarity, asked), RerankFields(query=first)
        ranked = ask(tasks, partial(rerank, texts=others), fields)
        scored = ask(tasks, lambda tasks, fields: score_pairs(tasks, [first], others, fields, raw=False), fields)
    np.testing.assert_allclose(found, answers["similarities"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ranked, found)
    np.testing.assert_allclose(scored, found, rtol=1e-6)


def test_a_request_can_ask_for_another_length_of_truncated_vectors(tmp_path: Path) -> None:
    with served(sentence_transformers.checkpoint("truncated", tmp_path / "checkpoint")) as tasks:

        def vector(**fields: object) -> Any:
            return ask(tasks, embed, EmbedRequest.model_validate({"inputs": ["The cat sat on the mat."]} | fields))

        own, scaled, whole = vector(), vector(normalize=True), vector(dimensions=32)
        np.testing.assert_allclose(own, whole[:, :KEPT], atol=1e-6)
        np.testing.assert_allclose(scaled, own / np.linalg.norm(own), atol=1e-6)
        assert vector(pooling="cls").shape == (1, 32)


@pytest.mark.parametrize(
    ("keys", "is_logit"),
    [
        ({}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, False),
    ],
)
def test_the_score_of_a_cross_encoder_is_made_by_its_stored_activation(
    keys: dict[str, object], is_logit: bool, tmp_path: Path
) -> None:
    with served(changed(tmp_path / "checkpoint", "distilbert-labels", **keys)) as tasks:
        texts = ["the river is cold", "a dog"]
        found, raw = (
            ask(tasks, partial(rerank, texts=texts), RerankFields(query="tea", raw_scores=one)) for one in (False, True)
        )
    np.testing.assert_allclose(found, raw if is_logit else 1 / (1 + np.exp(-raw)), atol=1e-6)


def test_an_activation_that_is_not_computed_is_reported(tmp_path: Path) -> None:
    stated = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    manifest = export(
        changed(tmp_path / "checkpoint", "distilbert-labels", sentence_transformers=stated), tmp_path / "artifact"
    )
    assert "Tanh, which is not computed" in manifest.assumed["activation_fn"]


def test_a_model_with_one_segment_takes_single_texts_and_refuses_pairs(tmp_path: Path) -> None:
    folder = changed(tmp_path / "checkpoint", "bert", type_vocab_size=1)
    name, weights = "bert.embeddings.token_type_embeddings.weight", load_file(folder / "model.safetensors")
    save_file(weights | {name: weights[name][:1]}, folder / "model.safetensors")
    with served(folder) as tasks:
        assert "no pairs" in tasks.manifest.assumed["single texts"]
        one = EmbedRequest(inputs="The cat sat on the mat.")
        assert ask(tasks, embed, one).shape == (1, 32)
        with pytest.raises(Invalid, match="it takes single texts"):
            ask(tasks, nsp, NspRequest.model_validate({"inputs": [["a", "b"]]}))
