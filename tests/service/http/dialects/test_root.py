"""`POST /`: which task answers it, and in which shape; `GET /` and /ping."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from packbert.service.artifact import open_artifact
from packbert.service.http.dialects.root import RootRequest, choose_task, set_fields
from packbert.service.settings import Settings, SettingsError
from packbert.service.tasks.defaults import root_task
from tests.export.goldens import Artifact
from tests.service.tasks.fake_vectors import tasks_with_vectors

SIMILARITY = {"source_sentence": "the cat", "sentences": ["a dog"]}


def choose(artifact: Artifact, body: Mapping[str, Any], root_task: str | None = None) -> str:
    tasks = tasks_with_vectors(open_artifact(artifact.root), root_task=root_task)
    return choose_task(tasks, set_fields(RootRequest.model_validate(body)))


@pytest.mark.parametrize(
    ("checkpoint", "body", "task"),
    [
        ("bert", {"inputs": "the cat"}, "embed"),
        ("bert", {"inputs": ["the [MASK]", "the cat"]}, "embed"),
        ("bert", {"inputs": "the [MASK]"}, "fill-mask"),
        ("bert", {"inputs": ["the [MASK]", "a [MASK]"]}, "fill-mask"),
        ("bert", {"inputs": "the cat", "parameters": {"targets": ["dog"]}}, "fill-mask"),
        ("bert", {"inputs": "the cat", "top_k": 3}, "fill-mask"),
        ("bert", {"inputs": "the [MASK]", "normalize": True}, "embed"),
        ("bert", {"inputs": "the [MASK]", "truncate": True}, "fill-mask"),
        ("bert", {"inputs": [[5, 6]], "tokenizer": "bert"}, "embed"),
        ("bert", {"inputs": SIMILARITY}, "similarity"),
        ("bert", {"query": "the cat", "texts": ["a dog"]}, "rerank"),
        ("bert-labels", {"inputs": "the [MASK]"}, "predict"),
        ("bert-labels", {"inputs": SIMILARITY}, "similarity"),
        ("bert-labels", {"inputs": "the cat", "parameters": {"candidate_labels": ["dog"]}}, "predict"),
        ("bert-tags", {"inputs": "the cat", "candidate_labels": "dog"}, "predict"),
        ("bert-tags", {"inputs": "the cat"}, "tag"),
        ("distilbert-labels", {"inputs": "the cat"}, "predict"),
        ("distilbert-labels", {"query": "the cat", "texts": ["a dog"]}, "rerank"),
    ],
)
def test_heads_and_fields_choose_the_task(
    exported: Callable[..., Artifact], checkpoint: str, body: dict[str, Any], task: str
) -> None:
    assert choose(exported(checkpoint), body) == task


def test_the_setting_chooses_where_the_fields_do_not(exported: Callable[..., Artifact]) -> None:
    bert = exported("bert")
    assert choose(bert, {"inputs": "the [MASK]"}, "embed") == "embed"
    assert choose(bert, {"inputs": "the cat"}, "fill-mask") == "fill-mask"
    assert choose(bert, {"inputs": {"text": "a", "text_pair": "b"}}, "nsp") == "nsp"
    assert choose(bert, {"inputs": SIMILARITY}, "embed") == "similarity"


def test_the_setting_may_not_name_a_task_whose_head_is_missing(exported: Callable[..., Artifact]) -> None:
    manifest = exported("bert").manifest
    assert root_task(manifest, Settings.from_environment({"BERT_MODEL": ".", "BERT_ROOT_TASK": "nsp"})) == "nsp"
    with pytest.raises(SettingsError, match="BERT_ROOT_TASK: bert has no labels head, which predict needs"):
        root_task(manifest, Settings.from_environment({"BERT_MODEL": ".", "BERT_ROOT_TASK": "predict"}))
    variables = {"BERT_MODEL": ".", "BERT_ROOT_TASK": "rerank"}
    assert root_task(manifest, Settings.from_environment(variables | {"BERT_RERANK": "cosine"})) == "rerank"
    with pytest.raises(SettingsError, match="BERT_ROOT_TASK: bert is no cross-encoder, which rerank needs"):
        root_task(manifest, Settings.from_environment(variables))
