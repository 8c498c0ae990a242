"""Cohere's and NVIDIA's requests, as their packages send them: six formats, words of truncation, cut texts."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.goldens import Artifact
from tests.service.in_process import InProcessClient, ask, serve_in_process

TEXTS = ["the cat sat", "我爱北京。", ""]
LONG = "the cat sat " * 300
TYPES = ["float", "base64", "int8", "uint8", "binary", "ubinary"]


@pytest.fixture(scope="module")
def encoder(bert_artifact: Path) -> Iterator[InProcessClient]:
    with serve_in_process(bert_artifact, BERT_RERANK="cosine") as client:
        yield client


@pytest.fixture(scope="module")
def cross_encoder(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("distilbert-labels").root) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "form", "found"),
    [
        ("/v2/embed", "texts", lambda answer: answer["embeddings"]["float"]),
        ("/api/embed", "input", lambda answer: answer["embeddings"]),
    ],
)
def test_a_request_says_how_special_tokens_are_read(
    encoder: InProcessClient, path: str, form: str, found: Callable[[Any], Any]
) -> None:
    for read in (False, True):
        expected = ask(encoder, "/v1/embeddings", input=["the [SEP] cat"], special_tokens=read)
        answer = ask(encoder, path, **{form: ["the [SEP] cat"]}, special_tokens=read)
        assert found(answer) == [one["embedding"] for one in expected["data"]]
    assert found(answer) != found(ask(encoder, path, **{form: ["the [SEP] cat"]}))


def vectors(client: InProcessClient, **body: Any) -> np.ndarray:
    return np.array([one["embedding"] for one in ask(client, "/v1/embeddings", **body)["data"]], np.float32)


@pytest.mark.parametrize("version", ["1", "2"])
def test_vectors_are_those_of_v1_embeddings_in_each_type(encoder: InProcessClient, version: str) -> None:
    body = {"model": "any", "texts": TEXTS, "input_type": "search_document", "embedding_types": [*TYPES, "float"]}
    found = ask(encoder, f"/v{version}/embed", **body)
    expected, types = vectors(encoder, input=TEXTS), found["embeddings"]
    assert [*types] == TYPES
    assert np.array_equal(np.array(types["float"], np.float32), expected)
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in types["base64"]]
    assert np.array_equal(decoded, expected)
    assert np.array_equal(np.array(types["ubinary"]), np.packbits(expected > 0, axis=-1))
    assert np.array_equal(np.array(types["binary"]), np.array(types["ubinary"]) - 128)
    int8 = np.array(types["int8"])
    assert np.array_equal(np.array(types["uint8"]), int8 + 128)
    assert np.array_equal(np.abs(int8).max(axis=-1), [127] * len(TEXTS))
    cosines = (int8 * expected).sum(axis=-1) / np.linalg.norm(int8, axis=-1)
    assert cosines.min() > 0.999
    assert (found["texts"], found["response_type"]) == (TEXTS, "embeddings_by_type")
    assert found["meta"]["api_version"] == {"version": version}
    assert found["meta"]["billed_units"]["input_tokens"] > len(TEXTS)


def test_version_1_without_types_answers_with_a_list_and_version_2_by_type(encoder: InProcessClient) -> None:
    first, second = (ask(encoder, f"/v{version}/embed", texts=TEXTS) for version in "12")
    assert first["response_type"] == "embeddings_floats"
    assert second["embeddings"] == {"float": first["embeddings"]}
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    assert ask(encoder, "/v2/embed", inputs=inputs)["embeddings"] == second["embeddings"]
    short = ask(encoder, "/v2/embed", texts=TEXTS, output_dimension=8)["embeddings"]["float"]
    assert np.array_equal(np.array(short, np.float32), vectors(encoder, input=TEXTS, dimensions=8))


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed", "/v1/embeddings"])
def test_truncate_takes_the_words_of_cohere_and_nvidia(encoder: InProcessClient, path: str) -> None:
    field = "input" if path == "/v1/embeddings" else "texts"
    for word, same in (("END", "right"), ("START", "left")):
        expected = vectors(encoder, input=[LONG], truncate=True, truncation_direction=same)
        found = ask(encoder, path, **{field: [LONG]}, truncate=word)
        own = found["data"][0]["embedding"] if field == "input" else found["embeddings"]
        assert np.array_equal(
            np.array(own["float"] if path == "/v2/embed" else own, np.float32).reshape(1, -1), expected
        )
    refused = encoder.post(path, json={field: [LONG], "truncate": "NONE"})
    assert refused.status_code == 422
    assert "this model takes at most" in refused.text
    assert "'NONE', 'START' or 'END'" in encoder.post(path, json={field: ["a"], "truncate": "LEFT"}).text


def test_an_input_type_finds_the_checkpoints_prompt(exported: Callable[..., Artifact]) -> None:
    with serve_in_process(exported("sentence-transformers/prompts").root) as client:
        for kind, name in (("search_query", "query"), ("search_document", "passage")):
            (found,) = ask(client, "/v2/embed", texts=["the cat"], input_type=kind)["embeddings"]["float"]
            assert np.array_equal([np.array(found, np.float32)], vectors(client, input="the cat", prompt_name=name))
        refused = client.post("/v2/embed", json={"texts": ["a"], "input_type": "clustering"})
        assert "input_type is 'clustering'; the prompts of this model are" in refused.json()["message"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "neither texts nor inputs is set"),
        ({"texts": ["a"], "inputs": []}, "texts and inputs are both set"),
        ({"texts": []}, "the request has no inputs"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types.0: Input should be 'float'"),
        ({"texts": ["a"], "input_type": "image"}, "input_type: Input should be 'search_document'"),
        ({"texts": ["a"], "images": ["data:"]}, "images: there is no such field"),
        ({"inputs": [{"content": [{"type": "image_url", "text": ""}]}]}, "Input should be 'text'"),
    ],
)
def test_an_error_is_where_coheres_clients_read_it(encoder: InProcessClient, body: Any, sentence: str) -> None:
    response = encoder.post("/v2/embed", json=body)
    assert response.status_code == 422
    assert sentence in response.json()["message"]


def test_documents_are_cut_after_max_tokens_per_doc(cross_encoder: InProcessClient) -> None:
    documents = ["the cat sat the dog", "the cat the cat sat", "", LONG]
    found = ask(cross_encoder, "/v2/rerank", query="the cat", documents=documents, max_tokens_per_doc=3)
    expected = ask(
        cross_encoder, "/v2/rerank", query="the cat", documents=["the cat sat", "the cat the", "", "the cat sat"]
    )
    assert found["results"] == expected["results"]
    assert found["usage"] == expected["usage"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_long_texts_are_cut_at_their_end_unless_the_request_says_otherwise(
    encoder: InProcessClient, version: str
) -> None:
    body = {"texts": ["a", LONG], "model": "any"}
    cut, left = (ask(encoder, f"/{version}/embed", **body, truncate=side)["embeddings"] for side in ("END", "START"))
    assert ask(encoder, f"/{version}/embed", **body)["embeddings"] == cut != left


@pytest.mark.parametrize("fields", [{"max_tokens_per_doc": 4096}, {"max_chunks_per_doc": 10}, {"truncate": "END"}])
def test_long_documents_are_truncated_for_coheres_clients(cross_encoder: InProcessClient, fields: Any) -> None:
    body = {"query": "the cat", "documents": ["a", LONG]}
    expected = ask(cross_encoder, "/v1/rerank", **body, truncate=True)
    assert ask(cross_encoder, "/v1/rerank", **body, **fields)["results"] == expected["results"]
    refused = cross_encoder.post("/v1/rerank", json=body | fields | {"truncate": "NONE"})
    assert (refused.status_code, refused.json()["code"]) == (422, "too_long")


def test_ranking_has_the_logits_of_rerank_in_the_shape_of_nvidia(
    cross_encoder: InProcessClient, encoder: InProcessClient
) -> None:
    texts = ["a dog", "the cat sat", "", LONG]
    for client in (cross_encoder, encoder):
        body = {"query": {"text": "the cat"}, "passages": [{"text": text} for text in texts], "truncate": "END"}
        found = ask(client, "/v1/ranking", **body, model="any")
        expected = ask(client, "/rerank", query="the cat", texts=texts, truncate=True, raw_scores=True)
        assert found["rankings"] == [{"index": one["index"], "logit": one["score"]} for one in expected]
        assert found["usage"]["total_tokens"] > 8
