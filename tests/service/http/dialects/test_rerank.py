"""/rerank, /v1/rerank, /v2/rerank: the bodies of six servers, the scores of a cross-encoder, and who gets a 501."""

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, NoSuchHead
from packbert.service.http.dialects.rerank import ROUTES, RerankRequest
from packbert.service.settings import Settings, SettingsError
from packbert.service.tasks.flow import TaskResult, answer_request
from tests.export.goldens import Artifact, answers
from tests.service.fakes import play
from tests.service.tasks.fake_vectors import tasks_with_vectors

QUERY, DOCUMENTS = "the cat", ["a dog", "the cat sat", "it rains"]


def rerank(client: httpx.Client, path: str, **fields: Any) -> Any:
    response = client.post(path, json={"query": QUERY} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_score_is_the_sigmoid_of_the_logit_that_transformers_gives_to_the_pair(cross_encoder: httpx.Client) -> None:
    pairs = [case for case in answers("distilbert-labels")["predict"] if isinstance(case["inputs"], list)]
    assert pairs
    for case in pairs:
        (query, text), (reference,) = case["inputs"], case["raw"]
        (raw,) = rerank(cross_encoder, "/rerank", query=query, texts=[text], raw_scores=True)
        (one,) = rerank(cross_encoder, "/rerank", query=query, texts=[text])
        assert raw == {"index": 0, "score": pytest.approx(reference["score"], abs=1e-4)}
        assert one == {"index": 0, "score": pytest.approx(1 / (1 + math.exp(-reference["score"])), abs=1e-5)}


def test_texts_are_ranked_as_in_text_embeddings_inference(cross_encoder: httpx.Client) -> None:
    ranked = rerank(cross_encoder, "/rerank", texts=DOCUMENTS)
    assert [set(one) for one in ranked] == [{"index", "score"}] * 3
    assert [one["score"] for one in ranked] == sorted((one["score"] for one in ranked), reverse=True)
    alone = [rerank(cross_encoder, "/rerank", texts=[text])[0]["score"] for text in DOCUMENTS]
    assert {one["index"]: one["score"] for one in ranked} == dict(enumerate(alone))
    assert rerank(cross_encoder, "/", texts=DOCUMENTS) == ranked
    assert rerank(cross_encoder, "/rerank", texts=DOCUMENTS, top_n=2) == ranked[:2]
    with_text = rerank(cross_encoder, "/rerank", texts=DOCUMENTS, return_text=True)
    assert with_text == [one | {"text": DOCUMENTS[one["index"]]} for one in ranked]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_get_the_response_of_cohere_jina_voyage_infinity_and_vllm(
    cross_encoder: httpx.Client, path: str
) -> None:
    scores = {one["index"]: one["score"] for one in rerank(cross_encoder, "/rerank", texts=DOCUMENTS)}
    answer = rerank(cross_encoder, path, documents=DOCUMENTS, return_documents=True, model="any", rank_fields=None)
    assert [set(one) for one in answer["results"]] == [{"index", "relevance_score"}] * 3
    assert {one["index"]: one["relevance_score"] for one in answer["results"]} == scores
    assert answer["data"] == answer["results"]
    assert answer["usage"]["prompt_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 12
    objects = rerank(cross_encoder, path, documents=[{"text": text} for text in DOCUMENTS])
    assert objects["results"] == answer["results"]
    assert objects["id"] != answer["id"]


def test_the_number_of_results_has_three_names(cross_encoder: httpx.Client) -> None:
    everything = rerank(cross_encoder, "/v1/rerank", documents=DOCUMENTS)["results"]
    for fields, count in (({"top_n": 1}, 1), ({"top_k": 2}, 2), ({"top_n": 0}, 3), ({"top_n": 9}, 3)):
        assert rerank(cross_encoder, "/v1/rerank", documents=DOCUMENTS, **fields)["results"] == everything[:count]


def test_a_document_is_returned_in_the_form_that_the_request_names(cross_encoder: httpx.Client) -> None:
    for form, of in (("string", str), ("object", lambda text: {"text": text})):
        answer = rerank(cross_encoder, "/v1/rerank", documents=DOCUMENTS, return_documents=form)
        assert [one["document"] for one in answer["results"]] == [of(DOCUMENTS[o["index"]]) for o in answer["results"]]


def test_infinitys_own_client_gets_the_documents_as_strings(cross_encoder: httpx.Client) -> None:
    """It alone sends raw_scores, always."""
    fields = {"documents": DOCUMENTS, "raw_scores": False, "model": "any"}
    answer = rerank(cross_encoder, "/rerank", **fields, return_documents=True)
    assert [one["document"] for one in answer["results"]] == [DOCUMENTS[one["index"]] for one in answer["results"]]
    assert {*rerank(cross_encoder, "/rerank", **fields)["results"][0]} == {"index", "relevance_score"}


def test_voyages_truncation_is_truncate(cross_encoder: httpx.Client) -> None:
    body = {"query": QUERY, "documents": ["the cat", "cat " * 600]}
    refused = cross_encoder.post("/v1/rerank", json=body)
    assert (refused.status_code, refused.json()["index"], refused.json()["code"]) == (422, 1, "too_long")
    cut = cross_encoder.post("/v1/rerank", json=body | {"truncation": True})
    assert (cut.status_code, cut.headers["x-truncated-inputs"]) == (200, "1")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "neither texts nor documents is set"),
        ({"texts": ["a"], "documents": ["a"]}, "texts and documents are both set"),
        ({"texts": []}, "the request has no inputs"),
        ({"documents": ["a", 5]}, "documents.1: Input should be a valid string or"),
        ({"documents": ["a"], "top_n": 1, "top_k": 2}, "top_n is 1 and top_k is 2: send one of them"),
        (
            {"documents": ["a"], "max_tokens_per_doc": -1},
            "max_tokens_per_doc: Input should be greater than",
        ),
    ],
)
def test_an_error_has_the_keys_that_each_client_reads(
    cross_encoder: httpx.Client, fields: dict[str, Any], sentence: str
) -> None:
    response = cross_encoder.post("/v1/rerank", json={"query": QUERY} | fields)
    body = response.json()
    assert response.status_code == 422
    assert sentence in body["error"]
    assert body["error"] == body["message"] == body["detail"]
    assert body["error_type"] in ("Validation", "Empty")


def test_of_a_classifier_with_several_labels_nothing_says_which_one_is_relevance(classifier: httpx.Client) -> None:
    response = classifier.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS})
    assert response.status_code == 501
    assert "this classifier has 3 (bad, fair, ...)" in response.json()["error"]


def run(tasks: Any, **fields: Any) -> Any:
    async def story(_: object) -> TaskResult:
        return await answer_request(
            tasks, ROUTES["/rerank"].task, RerankRequest.model_validate({"query": QUERY} | fields)
        )

    return play(story).value


def test_an_encoder_ranks_by_the_cosine_only_where_the_operator_allows_it(exported: Callable[..., Artifact]) -> None:
    artifact = open_artifact(exported("bert").root)
    with pytest.raises(NoSuchHead, match="BERT_RERANK=cosine"):
        run(tasks_with_vectors(artifact), texts=DOCUMENTS)
    tasks = tasks_with_vectors(artifact, scorer="cosine")
    best, *others = run(tasks, texts=[*DOCUMENTS, QUERY])
    assert best == {"index": 3, "score": pytest.approx(1.0)}
    assert others[0]["index"] == 1  # shares two words with the query
    assert all(-1 <= one["score"] < 1 for one in others)
    with pytest.raises(Invalid) as raised:
        run(tasks, texts=DOCUMENTS, query="cat " * 600)
    assert raised.value.message.startswith("query: input has")
    assert raised.value.index is None
    with pytest.raises(Invalid) as raised:
        run(tasks, texts=["a", "cat " * 600])
    assert raised.value.index == 1


def test_another_value_of_bert_rerank_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="BERT_RERANK"):
        Settings.from_environment({"BERT_MODEL": ".", "BERT_RERANK": "dot"})
