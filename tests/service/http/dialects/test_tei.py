"""What clients of text-embeddings-inference and of the Hugging Face API rely on beside the shapes of the tasks."""

from typing import Any

import httpx
import pytest

from packbert.service.http.dialects.native import model_type
from tests.service.in_process import ask


def test_info_describes_the_model_with_teis_keys_beside_ours(
    server: httpx.Client, classifier: httpx.Client, cross_encoder: httpx.Client
) -> None:
    info = server.get("/info").json()
    assert (info["execution_provider"], info["family"], info["mask_token"]) == ("CPU", "bert", "[MASK]")
    empty: dict[str, Any] = {"version": "", "revision": "", "license": "", "languages": []}
    assert (info["identity"], info["model_sha"]) == (empty | {"source": "bert"}, None)
    assert info["heads"] == ["cls", "mean", "tokens", "layers", "pooler", "pair", "fill_mask", "attention"]
    assert info["measured"]["batch_invariant"] is True
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
    assert model_type(info) == {"embedding": {"pooling": name}}


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/embed_sparse"])
def test_token_ids_of_this_models_tokenizer_are_read_as_inputs(path: str, server: httpx.Client) -> None:
    texts, more = ["the cat", "unaffable"], {"force": True} if path == "/embed_sparse" else {}
    tokens = ask(server, "/tokenize", inputs=texts)
    framed = [[token["id"] for token in one] for one in tokens]
    bare = [[token["id"] for token in one if not token["special"]] for one in tokens]
    expected = ask(server, path, inputs=texts, **more)
    named = more | {"tokenizer": "bert"}
    assert ask(server, path, inputs=framed, **named) == ask(server, path, inputs=bare, **named) == expected
    assert ask(server, path, inputs=bare[0], **named) == expected[:1]


def test_layers_are_those_of_the_texts_for_token_ids_too(server: httpx.Client) -> None:
    (tokens,) = ask(server, "/tokenize", inputs="the cat")
    asked = {"layers": [0, -1], "pooling": "mean"}
    ids = {"inputs": [token["id"] for token in tokens], "tokenizer": "bert"}
    assert ask(server, "/embed", **(ids | asked)) == ask(server, "/embed", inputs="the cat", **asked)


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
