"""The HTTP API of a real server process with the golden BERT: results equal to transformers, one format for errors."""

import re
from typing import Any

import httpx
import pytest

from packbert.service.errors import TooLarge
from packbert.service.tasks import sparse, tokens
from packbert.service.tasks import vectors as token_vectors
from tests.service.in_process import ask
from tests.service.polling import scrape


def test_a_response_over_the_size_limit_gets_413(server: httpx.Client) -> None:
    many = {"inputs": ["[MASK] " * 60] * 60, "top_k": 100}
    refused = server.post("/fill-mask", json=many)
    message = refused.json()["error"]
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert re.match(r"100 candidates for each of \d+ masks", message)  # those that were counted until it was too much
    assert "tokens; at most 4000000" in message
    assert ask(server, "/fill-mask", **many, targets=["cat", "dog"])  # two candidates for each


def test_the_documentation_works_without_the_internet(server: httpx.Client) -> None:
    page = server.get("/docs").text
    assert "http://" not in page
    assert "https://" not in page
    script = re.search(r'src="(/[^"]+\.js)"', page)
    assert script is not None
    assert server.get(script[1]).status_code == 200


def test_tokens_of_a_text_beyond_the_models_limit_are_shown_and_counted(server: httpx.Client) -> None:
    text = "cat " * 3000
    (found,) = ask(server, "/tokenize", inputs=text, details=True)
    last = found[-2]
    assert (len(found), last["start"], last["stop"], last["word"], last["position"]) == (3002, 11996, 11999, 2999, 3000)
    assert ask(server, "/tokenize", inputs=[text, "a", ["a", "b"]], count=True) == [3002, 3, 5]


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


def test_a_text_is_cut_where_the_request_says_so(server: httpx.Client) -> None:
    text = "dog " + LONGEST + "river"
    for direction, pieces in (("right", ["dog", "cat"]), ("left", ["cat", "river"])):
        response = server.post("/score", json={"inputs": text, "truncate": True, "truncation_direction": direction})
        tokens = response.json()["tokens"]
        assert ([tokens[0]["piece"], tokens[-1]["piece"]], len(tokens)) == (pieces, 142)
        assert response.headers["x-truncated-inputs"] == "1"
    assert ask(server, "/score", inputs=text, truncate_prompt_tokens=-1)["cost_tokens"] == PER_TEXT


def test_targets_share_the_passes_of_their_common_beginnings(server: httpx.Client) -> None:
    def tokens(*targets: str) -> float:
        before = scrape(server)
        ask(server, "/fill-mask", inputs="the [MASK]", targets=list(targets))
        after, name = scrape(server), "bert_request_tokens_sum"
        return after[name] - before[name]

    assert tokens("walked") == 2 * 5  # [CLS] the and two pieces [SEP], twice
    assert tokens("walked", "walks", "walking") == 2 * 5  # other last pieces, after the same first one
    assert tokens("walked", "rained") == 3 * 5  # two first pieces in one pass, then a pass each
    assert tokens("walked", "cat", "dog") == 2 * 5 + 4
