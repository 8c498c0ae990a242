"""The HTTP API of a real server process with the golden BERT: results equal to transformers, one format for errors."""

import io
import json
import re
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.service.errors import TooLarge
from packbert.service.tasks import sparse, tokens
from packbert.service.tasks import vectors as token_vectors
from tests.service.in_process import ask


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error, after checking its shape."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert set(body) <= {"error", "error_type", "code", "index", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == response.headers["x-request-id"]
    assert len(body["error"]) > 20
    return body


def test_fill_mask_scores_are_probabilities_over_the_whole_vocabulary(server: httpx.Client) -> None:
    vocabulary = server.get("/info").json()["sizes"]["vocabulary"]
    everything = ask(server, "/fill-mask", inputs="the [MASK] is big", top_k=vocabulary)
    assert len(everything) == vocabulary
    assert sum(one["score"] for one in everything) == pytest.approx(1.0, abs=1e-5)
    by_word = {one["token"]: one["score"] for one in everything}
    for one in ask(server, "/fill-mask", inputs="the [MASK] is big", targets=["cat", "dog"]):
        assert one["score"] == by_word[one["token"]]


def test_a_byte_order_mark_before_a_large_body_is_skipped(server: httpx.Client) -> None:
    body = json.dumps({"inputs": "the cat sat " * 2000, "truncate": True}).encode()
    assert server.post("/embed", content=b"\xef\xbb\xbf" + body).json() == server.post("/embed", content=body).json()


@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_slash_after_a_path_changes_no_answer(server: httpx.Client, slashes: str) -> None:
    """Also of a path with an error, and without a redirect, which would use the Host header."""
    for path in ("/health", "/v1/models", "/docs", "/v1/models/bert", "/embed"):
        plain, found = server.get(path), server.get(path + slashes)
        own = {"error", "request_id"}
        assert found.status_code == plain.status_code
        assert own & {*plain.text.split('"')} or found.content == plain.content
    body = {"inputs": "the cat"}
    assert ask(server, f"/embed{slashes}", **body) == ask(server, "/embed", **body)
    assert ask(server, slashes, **body) == ask(server, "/", **body)


@pytest.mark.parametrize(
    "content", [b'{"inputs": NaN}', b'{"inputs": "a", "dimensions": 1e999}', b'{"inputs": "a", "dimensions": Infinity}']
)
def test_numbers_that_are_not_finite_get_422(server: httpx.Client, content: bytes) -> None:
    error(server.post("/embed", content=content), 422, "invalid")


def test_a_response_over_the_size_limit_gets_413(server: httpx.Client) -> None:
    many = {"inputs": ["[MASK] " * 60] * 60, "top_k": 100}
    message = error(server.post("/fill-mask", json=many), 413, "too_large")["error"]
    assert re.match(r"100 candidates for each of \d+ masks", message)  # those that were counted until it was too much
    assert "tokens; at most 4000000" in message
    assert ask(server, "/fill-mask", **many, targets=["cat", "dog"])  # two candidates for each


def test_targets_are_limited_to_the_length_of_a_text(server: httpx.Client) -> None:
    message = error(
        server.post("/fill-mask", json={"inputs": "[MASK]", "targets": ["cat", "a " * 60_000]}), 422, "targets"
    )["error"]
    assert message == "targets hold 120003 characters; at most 100000 are allowed (BERT_MAX_CHARACTERS): send fewer"


@pytest.mark.parametrize("value", ["-5", "1.5", "9" * 5000])
def test_a_timeout_that_is_not_a_number_of_milliseconds_gets_422(server: httpx.Client, value: str) -> None:
    error(server.post("/embed", json={"inputs": "a"}, headers={"x-request-timeout-ms": value}), 422, "timeout")


def test_info_describes_the_running_model(server: httpx.Client) -> None:
    info = server.get("/info").json()
    assert info["execution_provider"] == "CPU"
    assert info["family"] == "bert"
    empty: dict[str, Any] = {"version": "", "revision": "", "license": "", "languages": []}
    assert info["identity"] == empty | {"source": "bert"}
    assert info["model_sha"] is None
    assert info["mask_token"] == "[MASK]"
    assert info["heads"] == ["cls", "mean", "tokens", "layers", "pooler", "pair", "fill_mask", "attention"]
    assert info["limits"]["inputs"] == 100
    assert info["measured"]["batch_invariant"] is True


def test_health_ready_and_docs_respond(server: httpx.Client) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready"}
    page = server.get("/docs").text
    assert "http://" not in page  # works without the internet
    assert "https://" not in page
    script = re.search(r'src="(/[^"]+\.js)"', page)
    assert script is not None
    assert server.get(script[1]).status_code == 200


def test_metrics_exist_from_the_start_and_count_requests(server: httpx.Client) -> None:
    def read(name: str) -> float:
        return float(
            next(line for line in server.get("/metrics").text.splitlines() if line.startswith(name)).split()[-1]
        )

    before = read('bert_requests_total{status="200",task="nsp"}')
    tokens = read("bert_tokens_total")
    ask(server, "/nsp", inputs={"text": "a", "text_pair": "b"})
    assert read('bert_requests_total{status="200",task="nsp"}') == before + 1
    assert read("bert_tokens_total") >= tokens + 5
    assert read('bert_execution_provider{provider="CPU"}') == 1
    assert read("bert_waiting_tokens") == 0


BODY = {"inputs": ["my dog is hairy", "he likes play ##ing"]}


def test_each_response_has_a_date(server: httpx.Client) -> None:
    for response in (server.get("/health"), server.post("/embed", json=BODY), server.get("/nowhere")):
        assert parsedate_to_datetime(response.headers["date"]).tzinfo is not None


def test_pages_and_metrics_are_compressed_where_the_client_accepts_it(server: httpx.Client) -> None:
    for path in ("/metrics", "/openapi.json", "/info"):
        packed = server.get(path, headers={"accept-encoding": "gzip"})
        plain = server.get(path, headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
    assert "content-encoding" not in server.get("/health", headers={"accept-encoding": "gzip"}).headers


NPY = {"accept": "application/x-npy"}


def test_tokens_of_a_text_beyond_the_models_limit_are_shown_and_counted(server: httpx.Client) -> None:
    text = "cat " * 3000
    (found,) = ask(server, "/tokenize", inputs=text, details=True)
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
    assert ask(server, "/tokenize", inputs=[text, "a", ["a", "b"]], count=True) == [3002, 3, 5]


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


LONGEST = "cat " * 142  # with [CLS] and [SEP] 144 tokens, the model's limit
PER_TEXT = 142 * 144  # tokens of its passes


def refuse(server: httpx.Client, path: str, body: Any, **headers: str) -> tuple[int, str, Any, int | None]:
    """Status, message, code and index of the error."""
    response = server.post(path, json=body, headers=headers)
    content = response.json()
    if path == "/score":
        content |= {"error": content["error"]["message"], "code": content["error"]["code"]}
    return response.status_code, content["error"], content["code"], content.get("index")


def test_a_text_is_cut_where_the_request_says_so(server: httpx.Client) -> None:
    text = "dog " + LONGEST + "river"
    for direction, pieces in (("right", ["dog", "cat"]), ("left", ["cat", "river"])):
        response = server.post("/score", json={"inputs": text, "truncate": True, "truncation_direction": direction})
        tokens = response.json()["tokens"]
        assert ([tokens[0]["piece"], tokens[-1]["piece"]], len(tokens)) == (pieces, 142)
        assert response.headers["x-truncated-inputs"] == "1"
    assert ask(server, "/score", inputs=text, truncate_prompt_tokens=-1)["cost_tokens"] == PER_TEXT


def test_the_deadline_of_a_likelihood_includes_all_of_its_passes(server: httpx.Client) -> None:
    status, sentence, code, _ = refuse(server, "/score", {"inputs": [LONGEST] * 8}, **{"x-request-timeout-ms": "5"})
    assert (status, code) in {(413, "too_much_for_deadline"), (503, "deadline")}
    assert "deadline" in sentence


def test_whole_words_are_limited_by_top_k_and_named_once(server: httpx.Client) -> None:
    body = {"inputs": "the [MASK]", "targets": ["Unaffable", "unaffable", "cat", "walked"]}
    found = ask(server, "/fill-mask", **body)
    assert {one["target"] for one in found} == {"Unaffable", "cat", "walked"}
    assert ask(server, "/fill-mask", **body, top_k=2) == found[:2]
    assert ask(server, "/fill-mask", **body, top_k=0) == []


def test_targets_share_the_passes_of_their_common_beginnings(server: httpx.Client) -> None:
    def tokens(*targets: str) -> float:
        before = read_tokens(server)
        ask(server, "/fill-mask", inputs="the [MASK]", targets=list(targets))
        return read_tokens(server) - before

    assert tokens("walked") == 2 * 5  # [CLS] the and two pieces [SEP], twice
    assert tokens("walked", "walks", "walking") == 2 * 5  # other last pieces, after the same first one
    assert tokens("walked", "rained") == 3 * 5  # two first pieces in one pass, then a pass each
    assert tokens("walked", "cat", "dog") == 2 * 5 + 4


def read_tokens(server: httpx.Client) -> float:
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("bert_request_tokens_sum"))


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence", "code", "index"),
    [
        (
            "/fill-mask",
            {"inputs": ["the [MASK]", "[MASK] " + "cat " * 140], "targets": ["unaffable"]},
            422,
            "input has 143 tokens, and 145 with a mask for each of a target's 3 pieces; this model takes at most 144",
            "too_long",
            1,
        ),
        ("/fill-mask", {"inputs": ["[MASK]", ""], "targets": ["unaffable"]}, 422, "input has no tokens", "empty", 1),
        ("/fill-mask", {"inputs": ["[MASK]", "cat"], "joint": True}, 422, "[MASK] was not found", "no_mask", 1),
        ("/fill-mask", {"inputs": "[MASK]", "joint": True, "top_k": 65}, 422, "top_k is 65; with joint", "top_k", None),
        ("/fill-mask", {"inputs": "[MASK]", "joint": True, "beam": 0}, 422, "beam: Input should be", "invalid", None),
        (
            "/fill-mask",
            {"inputs": "[MASK] " * 142, "joint": True, "beam": 10},
            413,
            f"the request takes {1 + 10 * 141} passes of the model with {(1 + 10 * 141) * 144} tokens in all",
            "too_large",
            None,
        ),
        (
            "/fill-mask",
            {"inputs": ["[MASK] " * 100] * 10, "targets": ["unaffable"]},
            413,
            f"the request takes 3000 passes of the model with {3000 * 104} tokens in all",
            "too_large",
            None,
        ),
        ("/score", {"inputs": ["a", 1]}, 422, "inputs.1: Input should be a valid string", "invalid", 1),
        (
            "/score",
            {"text_1": "a", "text_2": "b", "variant": "original"},
            422,
            "variant says how texts in `inputs`",
            "variant",
            None,
        ),
        (
            "/score",
            {"inputs": [LONGEST] * 9},
            413,
            f"{9 * 142} passes of the model with {9 * PER_TEXT} tokens in all; at most 180000 are allowed (nine ",
            "too_large",
            None,
        ),
    ],
)
def test_what_takes_too_much_or_misses_its_mask_is_refused(
    server: httpx.Client, path: str, body: Any, status: int, sentence: str, code: str, index: int | None
) -> None:
    found = refuse(server, path, body)
    assert (found[0], found[2:]) == (status, (code, index))
    assert sentence in found[1]


def test_one_mask_filled_by_joint_has_the_candidates_of_the_plain_request(server: httpx.Client) -> None:
    plain = ask(server, "/fill-mask", inputs="the [MASK] is big", top_k=3)
    joint = ask(server, "/fill-mask", inputs="the [MASK] is big", top_k=3, joint=True, beam=3)
    assert [one["tokens"] for one in joint] == [[one["token"]] for one in plain]
    assert [one["score"] for one in joint] == pytest.approx([one["score"] for one in plain])
    assert [one["texts"] for one in joint] == [[one["token_str"]] for one in plain]
    assert [one["sequence"] for one in joint] == [one["sequence"] for one in plain]


def test_a_wider_beam_finds_candidates_that_are_at_least_as_likely(server: httpx.Client) -> None:
    best = [
        ask(server, "/fill-mask", inputs="a [MASK] [MASK] [MASK].", joint=True, beam=beam, top_k=1)[0]
        for beam in (1, 64)
    ]
    assert best[0]["log_probability"] <= best[1]["log_probability"]
