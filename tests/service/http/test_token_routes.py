"""/tokenize, /decode, /embed_all and /embed_sparse over HTTP: shapes, limits and errors."""

import io
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.errors import TooLarge
from packbert.service.tasks import sparse, tokens
from packbert.service.tasks import vectors as token_vectors

NPY = {"accept": "application/x-npy"}


def post(server: httpx.Client, path: str, **body: Any) -> Any:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_tokenize_has_the_shape_of_text_embeddings_inference(server: httpx.Client) -> None:
    (found,) = post(server, "/tokenize", inputs="Unaffable 北京")
    assert [set(one) for one in found] == [{"id", "text", "special", "start", "stop"}] * len(found)
    assert [one["text"] for one in found] == ["[CLS]", "Un", "aff", "able", "北", "京", "[SEP]"]
    assert [(one["start"], one["stop"]) for one in found][:3] == [(None, None), (0, 2), (2, 5)]
    assert [one["special"] for one in found] == [True, *[False] * 5, True]
    (bare,) = post(server, "/tokenize", inputs="Unaffable 北京", add_special_tokens=False)
    assert [one["id"] for one in bare] == [one["id"] for one in found[1:-1]]
    assert post(server, "/decode", ids=[one["id"] for one in found]) == ["unaffable 北 京"]
    assert post(server, "/decode", ids=[[one["id"]] for one in bare[:2]]) == ["un", "##aff"]


def test_tokens_of_a_text_beyond_the_models_limit_are_shown_and_counted(server: httpx.Client) -> None:
    text = "cat " * 3000
    (found,) = post(server, "/tokenize", inputs=text, details=True)
    assert len(found) == 3002
    assert found[-2] | {"id": 0} == {
        "id": 0,
        "text": "cat",
        "special": False,
        "start": 11996,
        "stop": 11999,
        "piece": "cat",
        "unknown": False,
        "word": 2999,
        "side": 0,
        "segment": 0,
        "position": 3000,
    }
    assert post(server, "/tokenize", inputs=[text, "a", ["a", "b"]], count=True) == [3002, 3, 5]


def test_the_mask_token_is_text_unless_the_request_says_otherwise(server: httpx.Client) -> None:
    as_text, as_mask = (post(server, "/tokenize", inputs="a [MASK]", mask=mask)[0] for mask in (False, True))
    assert len(as_mask) == 4
    assert len(as_text) > 4


def test_embed_all_gives_the_vectors_that_cls_and_mean_are_made_of(server: httpx.Client) -> None:
    texts = ["the cat", "我爱北京。"]
    vectors = post(server, "/embed_all", inputs=texts)
    assert [len(one) for one in vectors] == post(server, "/tokenize", inputs=texts, count=True)
    np.testing.assert_allclose([one[0] for one in vectors], post(server, "/embed", inputs=texts), atol=1e-5)
    means = post(server, "/embed", inputs=texts, pooling="mean")
    np.testing.assert_allclose([np.mean(one, axis=0) for one in vectors], means, atol=1e-5)
    assert post(server, "/embed", inputs=texts, pooling="none") == vectors
    assert post(server, "/embed_all", inputs="the cat") == vectors[:1]
    (short,) = post(server, "/embed", inputs="the cat", pooling="none", dimensions=4, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, rtol=1e-5)


def test_vectors_of_tokens_in_npy_lie_one_input_after_another(server: httpx.Client) -> None:
    body = {"inputs": ["the cat", "我爱北京。"], "truncate": True}
    response = server.post("/embed_all", json=body, headers=NPY)
    rows = [int(count) for count in response.headers["x-npy-rows"].split(",")]
    parts = np.split(np.load(io.BytesIO(response.content)), np.cumsum(rows)[:-1])
    for got, want in zip(parts, post(server, "/embed_all", **body), strict=True):
        np.testing.assert_array_equal(got, np.array(want, np.float32))
    with_pieces = server.post("/embed", json={"inputs": "a", "pooling": "none", "pieces": True}, headers=NPY)
    assert set(with_pieces.json()[0]) == {"pieces", "vectors"}


def test_sparse_vectors_of_an_untrained_checkpoint_are_made_only_by_force(server: httpx.Client) -> None:
    refused = server.post("/embed_sparse", json={"inputs": "the cat"})
    assert refused.status_code == 501
    assert refused.json()["error"] == (
        'the checkpoint was not trained for sparse vectors (SPLADE); send "force": true to make them of its '
        "masked-language-model head"
    )
    (weights,) = post(server, "/embed_sparse", inputs="the cat", force=True)
    assert all(set(one) == {"index", "value"} and one["value"] > 0 for one in weights)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/decode", {"ids": [1, 170]}, 422, "the id 170 is not in the vocabulary; this model has 0 to 169"),
        ("/decode", {"ids": [[1], [-1]]}, 422, "the id -1 is not in the vocabulary"),
        ("/decode", {"ids": [[0] * 100_001]}, 422, "a list of 100001 ids; at most 100000 are allowed (BERT_MAX_CHARA"),
        ("/decode", {"ids": []}, 422, "the request has no inputs"),
        ("/decode", {"ids": [[1]] * 101}, 413, "the request has 101 inputs; at most 100 are allowed"),
        ("/tokenize", {"inputs": [["a", "b", "c"]]}, 422, "a pair has two texts, this one has 3"),
        ("/tokenize", {"inputs": "a" * 100_001}, 422, "input has 100001 characters; at most 100000 are allowed"),
        ("/tokenize", {"inputs": "a", "prompt_name": "query"}, 422, "this model has no prompt 'query'; it has none"),
        ("/embed_all", {"inputs": "cat " * 600}, 422, "input has 602 tokens; this model takes at most 144"),
        ("/embed_all", {"inputs": ["a", ""]}, 422, "input has no tokens"),
        ("/embed", {"inputs": "a", "pieces": True}, 422, 'send "pooling": "none" too'),
        ("/embed", {"inputs": "a", "pooling": "none", "dimensions": 33}, 422, "dimensions is 33; this model has 32"),
        ("/v1/embeddings", {"input": "a", "pooling": "none"}, 422, "pooling none gives a vector for each token"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_limit(
    server: httpx.Client, path: str, body: Any, status: int, sentence: str
) -> None:
    response = server.post(path, json=body)
    assert (response.status_code, sentence in response.text.replace('\\"', '"')) == (status, True), response.text


def test_states_of_layers_are_the_same_in_json_and_npy(server: httpx.Client) -> None:
    body = {"inputs": ["my cat", "a"], "layers": [-1, 0, 1], "pooling": "none"}
    shown = server.post("/embed", json=body).json()
    response = server.post("/embed", json=body, headers={"accept": "application/x-npy"})
    array, rows = np.load(io.BytesIO(response.content)), [int(n) for n in response.headers["x-npy-rows"].split(",")]
    assert rows == [len(layers[0]) for layers in shown]
    assert array.shape == (3, sum(rows), len(shown[0][0][0]))
    for own, layers in zip(np.split(array, np.cumsum(rows)[:-1], axis=1), shown, strict=True):
        assert np.abs(own - np.array(layers)).max() <= 1e-6
    assert np.array_equal(array[0, : rows[0]], server_tokens(server, "my cat"))
    pooled = server.post("/embed", json=body | {"pooling": "cls", "normalize": False}).json()
    assert np.abs(np.array(pooled)[0] - array[:, 0]).max() <= 1e-6


def server_tokens(server: httpx.Client, text: str) -> Any:
    """The last layer's states of the tokens of a text."""
    return np.array(server.post("/embed_all", json={"inputs": text}).json()[0], np.float32)


def test_a_deadline_that_passes_while_tokenizing_is_an_error(server: httpx.Client) -> None:
    body = {"inputs": ["cat " * 20_000] * 20, "count": True}
    response = server.post("/tokenize", json=body, headers={"x-request-timeout-ms": "1"})
    assert (response.status_code, response.json()["code"]) == (503, "deadline")


@pytest.mark.parametrize(
    ("check", "size", "sentence"),
    [
        (lambda size: token_vectors.check_answer_size(size, 768), 5208, "5209 tokens make a response of 4000512"),
        (sparse.check_answer_size, 1_000_000, "the texts have 1000001 weights above zero; at most 1000000 are allowed"),
        (tokens.check_answer_size, 300_000, "the inputs have 300001 tokens or more; at most 300000 are shown: split"),
    ],
)
def test_the_size_of_a_response_is_bounded(check: Any, size: int, sentence: str) -> None:
    check(size)
    with pytest.raises(TooLarge, match=sentence):
        check(size + 1)
