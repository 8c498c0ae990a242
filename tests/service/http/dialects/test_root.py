"""`POST /`: which task answers it, and in which shape; `GET /` and /ping."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.http.dialects.root import RootRequest, choose_task, set_fields
from packbert.service.settings import Settings, SettingsError
from packbert.service.tasks.defaults import root_task
from tests.export.goldens import Artifact
from tests.service.tasks.fake_vectors import tasks_with_vectors

SIMILARITY = {"source_sentence": "the cat", "sentences": ["a dog"]}


def post(client: httpx.Client, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


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


def test_labels_are_a_list_of_lists_also_for_one_text(classifier: httpx.Client) -> None:
    flat = post(classifier, "/predict", {"inputs": "the cat"})
    assert post(classifier, "/", {"inputs": "the cat"}) == [flat]
    assert post(classifier, "/", {"inputs": "the cat", "parameters": {"top_k": 1}}) == [flat[:1]]
    batch = {"inputs": [["the cat"], ["a dog"]]}
    assert post(classifier, "/", batch) == post(classifier, "/predict", batch)
    pair = {"inputs": ["the cat", "a dog"]}
    assert post(classifier, "/", pair) == [post(classifier, "/predict", pair)]  # one pair, as on /predict


def test_tags_are_grouped_unless_the_request_says_otherwise(tagger: httpx.Client) -> None:
    text = "The cat sat in Paris."
    groups = post(tagger, "/tag", {"inputs": text, "aggregation_strategy": "simple"})
    assert post(tagger, "/", {"inputs": text}) == groups
    assert post(tagger, "/", {"inputs": text, "parameters": {"ignore_labels": ["O"]}}) == groups
    single = post(tagger, "/tag", {"inputs": text})
    assert post(tagger, "/", {"inputs": text, "parameters": {"aggregation_strategy": "none"}}) == single
    assert post(tagger, "/", {"inputs": text, "aggregation_strategy": "none"}) == single


def test_vectors_words_and_cosines_are_those_of_their_routes(server: httpx.Client) -> None:
    for path, body in (
        ("/embed", {"inputs": "the cat", "normalize": True}),
        ("/embed", {"inputs": ["the cat", "a dog"], "options": {"wait_for_model": True}, "unknown": None}),
        ("/fill-mask", {"inputs": "the [MASK]", "parameters": {"top_k": 2, "targets": None}}),
        ("/similarity", {"inputs": SIMILARITY, "parameters": {"unknown": None}}),
    ):
        assert post(server, "/", body) == post(server, path, body)


def test_an_error_names_the_task_that_the_request_went_to(server: httpx.Client) -> None:
    response = server.post("/", json={"inputs": "the cat", "normalise": True})
    assert response.status_code == 422
    assert "normalise: did you mean normalize?" in response.json()["error"]
    assert response.json()["error"].endswith("`POST /` is embed for this request (BERT_ROOT_TASK names one for all)")
    assert "send inputs" in server.post("/", json={"parameters": {}}).json()["error"]


def test_a_browser_gets_the_page_and_a_probe_gets_health(server: httpx.Client) -> None:
    browser = server.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["content-type"]) == (200, "text/html; charset=utf-8")
    probe = server.get("/", headers={"accept": "*/*"})
    assert (probe.status_code, probe.json()) == (200, {"status": "ok"})
    assert server.get("/ping").json() == server.get("/ready").json() == {"status": "ready"}
