"""The routes of infinity and vLLM: the same numbers as the service's own routes, in their shapes."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.goldens import Artifact
from tests.service.in_process import InProcessClient, ask, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", "it was warm"]


@pytest.fixture(scope="module")
def classifier(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("bert-labels").root) as client:
        yield client


@pytest.fixture(scope="module")
def cross_encoder(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("distilbert-labels").root) as client:
        yield client


@pytest.fixture(scope="module")
def encoder(bert_artifact: Path) -> Iterator[InProcessClient]:
    with serve_in_process(bert_artifact, BERT_RERANK="cosine") as client:
        yield client


def refuse(client: InProcessClient, path: str, **body: Any) -> tuple[int, str]:
    response = client.post(path, json=body)
    return response.status_code, response.json()["error"]["message"]


def test_models_has_what_the_model_can_do(
    classifier: InProcessClient, cross_encoder: InProcessClient, encoder: InProcessClient
) -> None:
    (model,) = classifier.get("/models").json()["data"]
    assert (model["id"], model["object"], model["stats"]) == ("bert-labels", "model", {})
    found = [client.get("/models").json()["data"][0]["capabilities"] for client in (classifier, cross_encoder, encoder)]
    assert found == [["embed", "classify"], ["embed", "classify", "rerank"], ["embed"]]


@pytest.mark.parametrize("raw", [False, True])
def test_classify_gives_the_labels_of_predict_in_the_shape_of_infinity(classifier: InProcessClient, raw: bool) -> None:
    found = ask(classifier, "/classify", input=TEXTS, model="any", raw_scores=raw)
    expected = ask(classifier, "/predict", inputs=[[text] for text in TEXTS], raw_scores=raw)
    assert found["data"] == expected
    assert (found["object"], found["model"]) == ("classify", "bert-labels")
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > len(TEXTS)
    assert found["created"] > 0
    assert found["id"] != ask(classifier, "/classify", input=TEXTS)["id"]
    assert ask(classifier, "/classify", input=TEXTS[0])["data"] == ask(classifier, "/predict", inputs=[[TEXTS[0]]])


@pytest.mark.parametrize("activation", [True, False])
def test_classify_with_a_field_of_vllm_answers_in_its_shape(classifier: InProcessClient, activation: bool) -> None:
    found = ask(classifier, "/classify", input=TEXTS, use_activation=activation)
    labels = classifier.backend.artifact.manifest.labels
    ranked = ask(classifier, "/predict", inputs=[[text] for text in TEXTS], raw_scores=not activation)
    assert found["object"] == "list"
    for index, (one, expected) in enumerate(zip(found["data"], ranked, strict=True)):
        by_label = {each["label"]: each["score"] for each in expected}
        assert one == {
            "index": index,
            "label": expected[0]["label"],
            "probs": [by_label[label] for label in labels],
            "num_classes": len(labels),
        }


def test_classify_without_a_classifier_is_501_in_openais_shape(encoder: InProcessClient) -> None:
    status, message = refuse(encoder, "/classify", input=TEXTS)
    assert status == 501
    assert "no labels head" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_score_of_one_text_with_others_equals_rerank(cross_encoder: InProcessClient, first: str, second: str) -> None:
    found = ask(cross_encoder, "/score", **{first: TEXTS[0], second: TEXTS})
    ranked = ask(cross_encoder, "/rerank", query=TEXTS[0], texts=TEXTS)
    by_index = {one["index"]: one["score"] for one in ranked}
    assert [one["score"] for one in found["data"]] == [by_index[index] for index in range(len(TEXTS))]
    assert [(one["index"], one["object"]) for one in found["data"]] == [(0, "score"), (1, "score"), (2, "score")]
    assert found["object"] == "list"


def test_score_of_as_many_pairs_equals_that_of_each(cross_encoder: InProcessClient, encoder: InProcessClient) -> None:
    for client in (cross_encoder, encoder):
        together = ask(client, "/score", text_1=TEXTS, text_2=TEXTS[::-1])["data"]
        each = [ask(client, "/score", text_1=a, text_2=b)["data"][0] for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
        assert [one["score"] for one in together] == [one["score"] for one in each]


@pytest.mark.parametrize("path", ["/score", "/v1/rerank"])
def test_queries_and_documents_are_cut_after_the_tokens_that_vllms_clients_name(
    cross_encoder: InProcessClient, path: str
) -> None:
    first, second = ("text_1", "text_2") if path == "/score" else ("query", "documents")
    whole = {first: "the cat sat", second: ["the dog sat", "a cat"]}
    cut = ask(cross_encoder, path, **whole, max_tokens_per_query=2, max_tokens_per_doc=1)
    same = ask(cross_encoder, path, **{first: "the cat", second: ["the", "a"]})
    name = "data" if path == "/score" else "results"
    assert cut[name] == same[name]
    nothing = {"truncate_prompt_tokens": None, "truncation_side": "left"}
    plain = ask(cross_encoder, path, **whole)
    assert (
        ask(cross_encoder, path, **whole, max_tokens_per_query=0, max_tokens_per_doc=0, **nothing)[name] == plain[name]
    )
    long = {first: "the cat", second: ["the cat sat " * 300]}
    left, right = (
        ask(cross_encoder, path, **long, truncate_prompt_tokens=-1, truncation_side=side)[name]
        for side in ("left", "right")
    )
    assert left != right
    refused = cross_encoder.post(path, json=whole | {"truncate_prompt_tokens": 5})
    assert (refused.status_code, "truncate_prompt_tokens is 5" in refused.text) == (422, True)


def test_rerank_without_activation_gives_logits(cross_encoder: InProcessClient) -> None:
    body = {"query": TEXTS[0], "documents": TEXTS}
    raw = ask(cross_encoder, "/v1/rerank", **body, raw_scores=True, return_documents=False)
    assert ask(cross_encoder, "/v1/rerank", **body, use_activation=False)["results"] == raw["results"]


def test_the_logit_of_a_score_is_returned_without_activation(cross_encoder: InProcessClient) -> None:
    logits, scores = (
        np.array([one["score"] for one in ask(cross_encoder, "/score", text_1=TEXTS[0], text_2=TEXTS, **more)["data"]])
        for more in ({"use_activation": False}, {})
    )
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, rtol=1e-6)


def test_the_score_of_a_plain_encoder_is_the_cosine_where_the_operator_allows_it(
    encoder: InProcessClient, bert_artifact: Path, classifier: InProcessClient
) -> None:
    vectors = np.array(ask(encoder, "/embed", inputs=TEXTS, normalize=True))
    found = ask(encoder, "/score", text_1=TEXTS[0], text_2=TEXTS)
    np.testing.assert_allclose([one["score"] for one in found["data"]], vectors @ vectors[0], atol=1e-6)
    ranked = ask(encoder, "/rerank", query=TEXTS[0], texts=TEXTS)
    assert {one["index"]: one["score"] for one in ranked} == {one["index"]: one["score"] for one in found["data"]}
    with serve_in_process(bert_artifact) as without:
        status, message = refuse(without, "/score", text_1="a", text_2="b")
        assert (status, "BERT_RERANK=cosine" in message) == (501, True)
    status, message = refuse(classifier, "/score", text_1="a", text_2="b")
    assert (status, "3 (bad, fair, ...)" in message) == (501, True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_1": "a"}, "the body has text_1"),
        ({}, "the body has none of them"),
        ({"text_1": "a", "documents": ["b"]}, "the body has text_1, documents"),
        ({"text_1": ["a", "b"], "text_2": ["a"]}, "2 first and 1 second texts"),
        ({"text_1": ["a"], "text_2": []}, "1 first and 0 second texts: send at least one"),
        ({"text_1": [], "text_2": []}, "0 first and 0 second texts: send at least one"),
        ({"inputs": ["a"], "use_activation": False}, "use_activation is for scores of pairs"),
        ({"text_1": "a", "text_2": ["b", "cat " * 600]}, "a second text: input has 602 tokens"),
        ({"text_1": "cat " * 600, "text_2": ["b", "c"]}, "a first text: input has 602 tokens"),
    ],
)
def test_a_score_of_other_texts_is_refused_with_the_reason(
    encoder: InProcessClient, body: dict[str, Any], message: str
) -> None:
    status, found = refuse(encoder, "/score", **body)
    assert status == 422
    assert message in found


def test_pooling_gives_vectors_of_unit_length_or_as_asked(encoder: InProcessClient) -> None:
    for asked, same in (
        ({}, {"normalize": True}),
        ({"task": "embed", "dimensions": 0}, {"normalize": True}),
        ({"use_activation": False, "dimensions": 8}, {"normalize": False, "dimensions": 8}),
        ({"normalize": False, "pooling": "mean"}, {"normalize": False, "pooling": "mean"}),
    ):
        found = ask(encoder, "/pooling", input=TEXTS, **asked)
        assert [one["data"] for one in found["data"]] == ask(encoder, "/embed", inputs=TEXTS, **same)
        assert [(one["index"], one["object"]) for one in found["data"]] == [(i, "pooling") for i in range(3)]
    encoded = ask(encoder, "/pooling", input=TEXTS[0], encoding_format="base64")["data"][0]["data"]
    expected = ask(encoder, "/embed", inputs=TEXTS[0], normalize=True)[0]
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == pytest.approx(expected, abs=1e-7)


def test_pooling_of_a_classifier_gives_its_scores_unless_it_is_asked_for_vectors(classifier: InProcessClient) -> None:
    probs = [one["probs"] for one in ask(classifier, "/classify", input=TEXTS, use_activation=True)["data"]]
    found = [one["data"] for one in ask(classifier, "/pooling", input=TEXTS)["data"]]
    np.testing.assert_allclose(found, probs, atol=1e-7)
    vectors = [one["data"] for one in ask(classifier, "/pooling", input=TEXTS, task="embed")["data"]]
    assert vectors == ask(classifier, "/embed", inputs=TEXTS, normalize=True)
    for field, value in (("dimensions", 2), ("prompt", "a "), ("prompt_name", "query"), ("normalize", False)):
        status, message = refuse(classifier, "/pooling", input=TEXTS, **{field: value})
        assert (status, message.startswith(f"{field} applies to vectors")) == (422, True)


@pytest.mark.parametrize("path", ["/classify", "/pooling"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("truncate_prompt_tokens", 5), ("add_special_tokens", False), ("embed_dtype", "int8"), ("softmax", True)],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(
    classifier: InProcessClient, path: str, field: str, value: Any
) -> None:
    status, message = refuse(classifier, path, input=TEXTS, **{field: value})
    assert (status, message.startswith(field)) == (422, True)
    assert ask(classifier, path, input=TEXTS, **{field: None})


def test_a_task_without_a_route_here_is_refused(encoder: InProcessClient) -> None:
    assert refuse(encoder, "/pooling", input=TEXTS, task="token_embed") == (
        422,
        "task: Input should be 'embed' or 'classify'",
    )
