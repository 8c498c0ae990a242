"""/rerank and /score: the scores of a cross-encoder, and texts that are cut as clients of other servers ask."""

import math
from typing import Any

import pytest

from tests.export.goldens import answers
from tests.service.in_process import InProcessClient, ask

LONG = "the cat sat " * 300


def test_a_score_is_the_sigmoid_of_transformers_logit(scorer: InProcessClient) -> None:
    pairs = [case for case in answers("distilbert-labels")["predict"] if isinstance(case["inputs"], list)]
    assert pairs
    for case in pairs:
        (query, text), (reference,) = case["inputs"], case["raw"]
        (raw,) = ask(scorer, "/rerank", query=query, texts=[text], raw_scores=True)
        (one,) = ask(scorer, "/rerank", query=query, texts=[text])
        assert raw == {"index": 0, "score": pytest.approx(reference["score"], abs=1e-4)}
        assert one == {"index": 0, "score": pytest.approx(1 / (1 + math.exp(-reference["score"])), abs=1e-5)}


def test_documents_are_cut_after_max_tokens_per_doc(scorer: InProcessClient) -> None:
    documents = ["the cat sat the dog", "the cat the cat sat", "", LONG]
    found = ask(scorer, "/v2/rerank", query="the cat", documents=documents, max_tokens_per_doc=3)
    expected = ask(scorer, "/v2/rerank", query="the cat", documents=["the cat sat", "the cat the", "", "the cat sat"])
    assert found["results"] == expected["results"]
    assert found["usage"] == expected["usage"]


@pytest.mark.parametrize("fields", [{"max_tokens_per_doc": 4096}, {"max_chunks_per_doc": 10}, {"truncate": "END"}])
def test_long_documents_are_truncated_for_coheres_clients(scorer: InProcessClient, fields: Any) -> None:
    body = {"query": "the cat", "documents": ["a", LONG]}
    expected = ask(scorer, "/v1/rerank", **body, truncate=True)
    found = ask(scorer, "/v1/rerank", **body, **fields)
    assert (found["results"], found["id"] == expected["id"]) == (expected["results"], False)
    refused = scorer.post("/v1/rerank", json=body | fields | {"truncate": "NONE"})
    assert (refused.status_code, refused.json()["code"]) == (422, "too_long")


def test_ranking_has_the_logits_of_rerank_in_the_shape_of_nvidia(
    scorer: InProcessClient, encoder: InProcessClient
) -> None:
    texts = ["a dog", "the cat sat", "", LONG]
    for client in (scorer, encoder):
        body = {"query": {"text": "the cat"}, "passages": [{"text": text} for text in texts], "truncate": "END"}
        found = ask(client, "/v1/ranking", **body, model="any")
        expected = ask(client, "/rerank", query="the cat", texts=texts, truncate=True, raw_scores=True)
        assert found["rankings"] == [{"index": one["index"], "logit": one["score"]} for one in expected]
        assert found["usage"]["total_tokens"] > 8


@pytest.mark.parametrize("path", ["/score", "/v1/rerank"])
def test_queries_and_documents_are_cut_after_the_tokens_named(scorer: InProcessClient, path: str) -> None:
    first, second = ("text_1", "text_2") if path == "/score" else ("query", "documents")
    whole = {first: "the cat sat", second: ["the dog sat", "a cat"]}
    cut = ask(scorer, path, **whole, max_tokens_per_query=2, max_tokens_per_doc=1)
    same = ask(scorer, path, **{first: "the cat", second: ["the", "a"]})
    name = "data" if path == "/score" else "results"
    assert cut[name] == same[name]
    nothing = {"truncate_prompt_tokens": None, "truncation_side": "left"}
    plain = ask(scorer, path, **whole)
    assert ask(scorer, path, **whole, max_tokens_per_query=0, max_tokens_per_doc=0, **nothing)[name] == plain[name]
    long = {first: "the cat", second: [LONG]}
    left, right = (
        ask(scorer, path, **long, truncate_prompt_tokens=-1, truncation_side=side)[name] for side in ("left", "right")
    )
    assert left != right
    refused = scorer.post(path, json=whole | {"truncate_prompt_tokens": 5})
    assert (refused.status_code, "truncate_prompt_tokens is 5" in refused.text) == (422, True)
