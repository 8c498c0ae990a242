"""What clients of text-embeddings-inference and of the Hugging Face API rely on beside the shapes of the tasks."""

from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.http.dialects.native import info_keys


def post(client: httpx.Client, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 422, response.text
    content: dict[str, Any] = response.json()
    return content


def test_similarity_is_the_cosine_of_the_vectors_of_embed(server: httpx.Client) -> None:
    sentences = ["the cat", "我爱北京。", "it rains"]
    vectors = np.array(post(server, "/embed", {"inputs": ["a cat", *sentences], "normalize": True, "pooling": "mean"}))
    body = {"inputs": {"source_sentence": "a cat", "sentences": sentences}, "parameters": {"pooling": "mean"}}
    np.testing.assert_allclose(post(server, "/similarity", body), vectors[1:] @ vectors[0], atol=1e-6)
    flat = body | {"parameters": None, "pooling": "mean"}
    assert post(server, "/similarity", flat) == post(server, "/similarity", body)
    assert post(server, "/similarity", body | {"inputs": {"source_sentence": "a", "sentences": ["a"]}}) == [1.0]


def test_an_error_of_similarity_names_the_sentence(server: httpx.Client) -> None:
    source = refusal(server, "/similarity", {"inputs": {"source_sentence": " ", "sentences": ["a"]}})
    assert source["error"].startswith("source_sentence: input has no tokens")
    assert "index" not in source
    assert refusal(server, "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a", ""]}})["index"] == 1
    long = {"inputs": {"source_sentence": "a", "sentences": ["a", "cat " * 600]}}
    assert refusal(server, "/similarity", long)["index"] == 1
    cut = server.post("/similarity", json=long | {"parameters": {"truncate": True}})
    assert cut.headers["x-truncated-inputs"] == "1"


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "any", "user": "me"},
        {"options": {"wait_for_model": True, "use_cache": False}},
        {"encoding_format": "float"},
        {"anything": None, "parameters": {"anything": None}},
        {"parameters": {"normalize": False, "truncate": True}},
        {"prompt_name": None, "dimensions": None, "truncation_direction": "Right"},
    ],
)
def test_fields_that_change_nothing_are_let_pass(server: httpx.Client, fields: dict[str, Any]) -> None:
    assert post(server, "/embed", {"inputs": "the cat"} | fields) == post(server, "/embed", {"inputs": "the cat"})


def test_parameters_of_embed_are_its_fields(server: httpx.Client) -> None:
    fields = {"normalize": True, "dimensions": 3, "pooling": "mean"}
    nested = post(server, "/embed", {"inputs": "the cat", "parameters": fields})
    assert nested == post(server, "/embed", {"inputs": "the cat"} | fields)
    twice = refusal(server, "/embed", {"inputs": "a", "normalize": True, "parameters": {"normalize": False}})
    assert twice["error"] == "normalize given twice: at the top level and under parameters"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"normalise": True, "other": None}, "normalise: did you mean normalize?"),
        ({"parameters": {"normalise": True}}, "parameters.normalise: did you mean normalize?"),
        ({"encoding_format": "base64"}, "encoding_format: base64 is not an encoding of this route: /v1/embeddings"),
        ({"options": {"fast": True}}, "options.fast: there is no such field"),
        ({"prompt_name": "query"}, "this model has no prompt 'query'"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(
    server: httpx.Client, fields: dict[str, Any], sentence: str
) -> None:
    assert refusal(server, "/embed", {"inputs": "the cat"} | fields)["error"].startswith(sentence)


def test_an_unknown_null_does_not_hide_what_is_wrong_beside_it(server: httpx.Client) -> None:
    assert refusal(server, "/embed", {"inputs": 5, "unknown": None})["error"].startswith("inputs: Input should be")
    assert refusal(server, "/nsp", {"inputs": [{"text": "a", "text_pair": "b", "unknown": None}]})["index"] == 0


def test_predict_with_parameters_answers_as_the_hugging_face_api(classifier: httpx.Client) -> None:
    flat = post(classifier, "/predict", {"inputs": "the cat"})
    assert post(classifier, "/predict", {"inputs": "the cat", "parameters": {}}) == [flat]
    assert post(classifier, "/predict", {"inputs": "the cat", "parameters": {"top_k": 2}}) == [flat[:2]]
    assert post(classifier, "/predict", {"inputs": "the cat", "top_k": 2}) == flat[:2]
    raw = post(classifier, "/predict", {"inputs": "the cat", "raw_scores": True})
    assert post(classifier, "/predict", {"inputs": "the cat", "function_to_apply": "none"}) == raw
    sigmoid = post(classifier, "/predict", {"inputs": "the cat", "parameters": {"function_to_apply": "sigmoid"}})[0]
    logits = np.array([one["score"] for one in raw])
    np.testing.assert_allclose([one["score"] for one in sigmoid], 1 / (1 + np.exp(-logits)), atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"raw_scores": True, "function_to_apply": "softmax"}, "raw_scores is true and function_to_apply is softmax"),
        ({"top_k": 0}, "top_k: Input should be greater than or equal to 1"),
        ({"parameters": {"function_to_apply": "relu"}}, "parameters.function_to_apply: Input should be 'softmax'"),
        ({"parameters": {"padding": True}}, "parameters.padding: there is no such field"),
    ],
)
def test_predict_refuses_what_it_cannot_do(classifier: httpx.Client, fields: dict[str, Any], sentence: str) -> None:
    assert refusal(classifier, "/predict", {"inputs": "the cat"} | fields)["error"].startswith(sentence)


def test_errors_have_teis_type_beside_the_code(server: httpx.Client) -> None:
    for path, body, kind in (
        ("/embed", {"inputs": ""}, "Empty"),
        ("/embed", {"inputs": "cat " * 600}, "Validation"),
        ("/predict", {"inputs": "a"}, "Backend"),
        ("/nothing", {}, "Validation"),
    ):
        assert server.post(path, json=body).json()["error_type"] == kind


def test_info_has_teis_keys_with_the_values_of_ours(
    server: httpx.Client, classifier: httpx.Client, cross_encoder: httpx.Client
) -> None:
    info = server.get("/info").json()
    assert info["model_id"] == info["served_model_name"] == info["model"]
    assert (info["max_input_length"], info["max_client_batch_size"]) == (info["limits"]["tokens"], 100)
    assert (info["model_dtype"], info["model_type"]) == ("float32", {"embedding": {"pooling": "cls"}})
    assert info["max_batch_tokens"] == info["measured"]["token_budget"]
    assert (info["auto_truncate"], info["version"]) == (False, info["versions"]["service"])
    numbers = {"bad": 0, "fair": 1, "good": 2}
    names = {str(number): name for name, number in numbers.items()}
    assert classifier.get("/info").json()["model_type"] == {"classifier": {"id2label": names, "label2id": numbers}}
    assert list(cross_encoder.get("/info").json()["model_type"]) == ["reranker"]
    assert [one.get("/info").json()["rerank"] for one in (server, cross_encoder)] == [None, "cross-encoder"]


@pytest.mark.parametrize(
    ("pooling", "modules", "name"),
    [
        ("mean", [], "mean"),
        ("pooler", [], "cls"),
        ("sentence", ["Pooling(mean)", "Dense"], "mean"),
        ("sentence", ["Pooling(max)"], "cls"),
    ],
)
def test_a_pooling_has_a_name_that_teis_clients_accept(
    server: httpx.Client, pooling: str, modules: list[str], name: str
) -> None:
    info = server.get("/info").json() | {"pooling": pooling, "embedding": {"modules": modules}}
    assert info_keys(info)["model_type"] == {"embedding": {"pooling": name}}


def test_a_worker_that_waits_for_the_engine_has_no_keys_of_tei() -> None:
    assert info_keys({"model": "bert", "artifact": "1", "status": "loading", "workers": 2}) == {}


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/embed_sparse"])
def test_token_ids_of_this_models_tokenizer_are_read_as_inputs(path: str, server: httpx.Client) -> None:
    texts, more = ["the cat", "unaffable"], {"force": True} if path == "/embed_sparse" else {}
    tokens = post(server, "/tokenize", {"inputs": texts})
    framed = [[token["id"] for token in one] for one in tokens]
    bare = [[token["id"] for token in one if not token["special"]] for one in tokens]
    expected = post(server, path, {"inputs": texts} | more)
    named = more | {"tokenizer": "bert"}
    assert post(server, path, {"inputs": framed} | named) == post(server, path, {"inputs": bare} | named) == expected
    assert post(server, path, {"inputs": bare[0]} | named) == expected[:1]
    for other in ({}, {"tokenizer": "cl100k_base"}):
        refused = refusal(server, path, {"inputs": framed} | more | other)
        assert (refused["code"], '"tokenizer": "bert"' in refused["error"]) == ("token_ids", True)
    unknown = refusal(server, path, {"inputs": [bare[0], [5, 99999]]} | named)
    assert "token id 99999; the vocabulary of this model has the ids 0 to" in unknown["error"]
    assert (unknown["code"], unknown["index"]) == ("token_ids", 1)


@pytest.mark.parametrize("more", [{"pieces": True, "pooling": "none"}, {"stride": 4}, {"long": "windows"}])
def test_what_needs_the_texts_is_refused_for_token_ids(more: dict[str, Any], server: httpx.Client) -> None:
    refused = refusal(server, "/embed", {"inputs": [[5, 6]], "tokenizer": "bert"} | more)
    assert "need the texts, and tokenizer is for token ids" in refused["error"]


def test_layers_are_those_of_the_texts_for_token_ids_too(server: httpx.Client) -> None:
    (tokens,) = post(server, "/tokenize", {"inputs": "the cat"})
    asked = {"layers": [0, -1], "pooling": "mean"}
    ids = {"inputs": [token["id"] for token in tokens], "tokenizer": "bert"}
    assert post(server, "/embed", ids | asked) == post(server, "/embed", {"inputs": "the cat"} | asked)


@pytest.mark.parametrize(("path", "field"), [("/embed", "inputs"), ("/embed_all", "inputs"), ("/rerank", "texts")])
def test_answers_have_the_headers_of_text_embeddings_inference(
    path: str, field: str, server: httpx.Client, cross_encoder: httpx.Client
) -> None:
    client, more = (cross_encoder, {"query": "a"}) if path == "/rerank" else (server, {})
    answer = client.post(path, json={field: ["the cat", "unaffable " * 60], "truncate": True} | more)
    assert answer.status_code == 200, answer.text
    times = [answer.headers[f"x-{name}-time"] for name in ("compute", "total", "tokenization", "queue", "inference")]
    compute, total, *stages = map(int, times)
    assert compute == total >= sum(stages)
    assert answer.headers["x-compute-type"] == "cpu"
    assert int(answer.headers["x-compute-tokens"]) > 100
    assert "x-compute-time" not in server.post("/fill-mask", json={"inputs": "the [MASK]"}).headers
