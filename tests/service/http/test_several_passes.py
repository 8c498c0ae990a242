"""/score with `inputs`, and /fill-mask with whole words and `joint`, over HTTP: shapes, limits and errors."""

import math
from typing import Any

import httpx
import pytest

from packbert.service.tasks.fill_mask import Candidate, JointCandidate
from packbert.service.tasks.likelihood import Likelihood

LONGEST = "cat " * 142  # with [CLS] and [SEP] 144 tokens, the model's limit
PER_TEXT = 142 * 144  # tokens of its passes


def post(server: httpx.Client, path: str, **body: Any) -> Any:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refuse(server: httpx.Client, path: str, body: Any, **headers: str) -> tuple[int, str, Any, int | None]:
    """Status, message, code and index of the error."""
    response = server.post(path, json=body, headers=headers)
    content = response.json()
    if path == "/score":
        content |= {"error": content["error"]["message"], "code": content["error"]["code"]}
    return response.status_code, content["error"], content["code"], content.get("index")


def test_a_text_gets_one_likelihood_and_a_list_a_list(server: httpx.Client) -> None:
    one = post(server, "/score", inputs="unaffable cat")
    assert [token["piece"] for token in one["tokens"]] == ["un", "##aff", "##able", "cat"]
    assert [(token["start"], token["stop"], token["word"]) for token in one["tokens"]] == [
        (0, 2, 0),
        (2, 5, 0),
        (5, 9, 0),
        (10, 13, 1),
    ]
    assert (one["variant"], one["cost_tokens"]) == ("within_word", 4 * 6)
    Likelihood.model_validate(one)
    assert post(server, "/score", inputs=["unaffable cat"]) == [one]
    assert post(server, "/score", inputs=["a", "unaffable cat"])[1] == one


def test_the_variants_differ_only_in_words_of_several_pieces(server: httpx.Client) -> None:
    default, within, original = (
        post(server, "/score", inputs=["unaffable cat", "the cat"], **more)
        for more in ({}, {"variant": "within_word"}, {"variant": "original"})
    )
    assert default == within
    assert original[1] == within[1] | {"variant": "original"}
    same = [a == b for a, b in zip(original[0]["tokens"], within[0]["tokens"], strict=True)]
    assert same == [False, False, True, True]  # the last piece of a word has no later ones


def test_a_mask_token_in_a_text_is_text(server: httpx.Client) -> None:
    found = post(server, "/score", inputs="a [MASK]")
    assert "[MASK]" not in [token["piece"] for token in found["tokens"]]
    assert found["tokens"][-1]["stop"] == len("a [MASK]")


def test_a_text_is_cut_where_the_request_says_so(server: httpx.Client) -> None:
    text = "dog " + LONGEST + "river"
    for direction, pieces in (("right", ["dog", "cat"]), ("left", ["cat", "river"])):
        response = server.post("/score", json={"inputs": text, "truncate": True, "truncation_direction": direction})
        tokens = response.json()["tokens"]
        assert ([tokens[0]["piece"], tokens[-1]["piece"]], len(tokens)) == (pieces, 142)
        assert response.headers["x-truncated-inputs"] == "1"
    assert post(server, "/score", inputs=text, truncate_prompt_tokens=-1)["cost_tokens"] == PER_TEXT


@pytest.mark.parametrize(
    ("body", "status", "sentence", "code", "index"),
    [
        ({"inputs": ["a", ""]}, 422, "input has no tokens: it is empty", "empty", 1),
        (
            {"inputs": ["a", "b", "cat " * 200]},
            422,
            "input has 202 tokens; this model takes at most 144",
            "too_long",
            2,
        ),
        ({"inputs": []}, 422, "the request has no inputs", "empty", None),
        ({"inputs": ["a", 1]}, 422, "inputs.1: Input should be a valid string", "invalid", 1),
        (
            {"inputs": "a", "variant": "both"},
            422,
            "variant: Input should be 'within_word' or 'original'",
            "invalid",
            None,
        ),
        (
            {"inputs": "a", "text_1": "b"},
            422,
            "inputs asks how likely texts are, and text_1 is for scores",
            "pair",
            None,
        ),
        (
            {"text_1": "a", "text_2": "b", "variant": "original"},
            422,
            "variant says how texts in `inputs`",
            "variant",
            None,
        ),
        ({"inputs": ["a"] * 101}, 413, "the request has 101 inputs; at most 100 are allowed", "too_large", None),
        (
            {"inputs": [LONGEST] * 9},
            413,
            f"{9 * 142} passes of the model with {9 * PER_TEXT} tokens in all; at most 180000 are allowed (nine ",
            "too_large",
            None,
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_with_the_reason(
    server: httpx.Client, body: Any, status: int, sentence: str, code: str, index: int | None
) -> None:
    found = refuse(server, "/score", body)
    assert (found[0], found[2:]) == (status, (code, index))
    assert sentence in found[1]


def test_the_deadline_of_a_likelihood_includes_all_of_its_passes(server: httpx.Client) -> None:
    status, sentence, code, _ = refuse(server, "/score", {"inputs": [LONGEST] * 8}, **{"x-request-timeout-ms": "5"})
    assert (status, code) in {(413, "too_much_for_deadline"), (503, "deadline")}
    assert "deadline" in sentence


def test_a_model_without_a_masked_language_model_has_no_likelihood(classifier: httpx.Client) -> None:
    status, sentence, code, _ = refuse(classifier, "/score", {"inputs": "a"})
    assert (status, code) == (501, "no_such_head")
    assert "no fill_mask head" in sentence
    assert classifier.post("/score", json={"inputs": "a"}).json()["request_id"]


def test_targets_of_one_piece_have_the_same_score_beside_longer_ones(server: httpx.Client) -> None:
    for inputs in ("the [MASK] is big", ["the [MASK] is big", "a [MASK] and a [MASK]"]):
        single = post(server, "/fill-mask", inputs=inputs, targets=["cat", "dog"])
        mixed = post(server, "/fill-mask", inputs=inputs, targets=["cat", "unaffable", "dog", "北京"])
        pairs = (
            [(single, mixed)]
            if isinstance(inputs, str)
            else [(single[0], mixed[0]), *zip(single[1], mixed[1], strict=True)]
        )
        for few, all_of_them in pairs:
            assert {one["target"] for one in all_of_them} == {"cat", "unaffable", "dog", "北京"}
            assert len({*all_of_them[0]} - {*few[0]}) == 4
            known = {one["target"]: one for one in all_of_them}
            for one in few:
                assert one == {key: known[one["target"]][key] for key in one}
            for one in all_of_them:
                Candidate.model_validate(one)
                assert one["score"] == pytest.approx(math.exp(one["log_probability"] / len(one["pieces"])))


def test_a_candidate_of_several_pieces_has_their_text_in_place_of_the_mask(server: httpx.Client) -> None:
    by_target = {
        one["target"]: one for one in post(server, "/fill-mask", inputs="the [MASK] is big", targets=["unaffable", "a"])
    }
    one = by_target["unaffable"]
    assert (one["token_str"], one["sequence"]) == ("unaffable", "the unaffable is big")
    assert one["pieces"] == ["un", "##aff", "##able"]
    assert by_target["a"]["pieces"] == ["a"]
    first, second = post(server, "/fill-mask", inputs="[MASK] and [MASK]", targets=["unaffable"])
    assert first[0]["sequence"] == "[CLS] unaffable and [MASK] [SEP]"
    assert second[0]["sequence"] == "[CLS] [MASK] and unaffable [SEP]"


def test_whole_words_are_limited_by_top_k_and_named_by_the_first_target(server: httpx.Client) -> None:
    body = {"inputs": "the [MASK]", "targets": ["Unaffable", "unaffable", "cat", "walked"]}
    found = post(server, "/fill-mask", **body)
    assert {one["target"] for one in found} == {"Unaffable", "cat", "walked"}
    assert post(server, "/fill-mask", **body, top_k=2) == found[:2]
    assert post(server, "/fill-mask", **body, top_k=0) == []


def test_targets_share_the_passes_of_their_common_beginnings(server: httpx.Client) -> None:
    def tokens(*targets: str) -> float:
        before = read_tokens(server)
        post(server, "/fill-mask", inputs="the [MASK]", targets=list(targets))
        return read_tokens(server) - before

    assert tokens("walked") == 2 * 5  # [CLS] the and two pieces [SEP], twice
    assert tokens("walked", "walks", "walking") == 2 * 5  # other last pieces, after the same first one
    assert tokens("walked", "rained") == 3 * 5  # two first pieces in one pass, then a pass each
    assert tokens("walked", "cat", "dog") == 2 * 5 + 4


def read_tokens(server: httpx.Client) -> float:
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("bert_request_tokens_sum"))


@pytest.mark.parametrize(
    ("body", "status", "sentence", "code", "index"),
    [
        (
            {"inputs": ["the [MASK]", "[MASK] " + "cat " * 140], "targets": ["unaffable"]},
            422,
            "input has 143 tokens, and 145 with a mask for each of a target's 3 pieces; this model takes at most 144",
            "too_long",
            1,
        ),
        ({"inputs": ["the [MASK]", "cat"], "targets": ["unaffable"]}, 422, "[MASK] was not found", "no_mask", 1),
        ({"inputs": ["[MASK]", ""], "targets": ["unaffable"]}, 422, "input has no tokens", "empty", 1),
        ({"inputs": [], "joint": True}, 422, "the request has no inputs", "empty", None),
        ({"inputs": ["[MASK]", "cat"], "joint": True}, 422, "[MASK] was not found", "no_mask", 1),
        ({"inputs": "[MASK]", "joint": True, "beam": 65}, 422, "beam is 65; with joint at most 64 is", "beam", None),
        ({"inputs": "[MASK]", "joint": True, "top_k": 65}, 422, "top_k is 65; with joint at most 64", "top_k", None),
        ({"inputs": "[MASK]", "joint": True, "top_k": 4, "beam": 3}, 422, "a beam of 3 keeps no more", "top_k", None),
        ({"inputs": "[MASK]", "joint": True, "beam": 0}, 422, "beam: Input should be greater than", "invalid", None),
        ({"inputs": "[MASK]", "joint": True, "targets": ["cat"]}, 422, "send one of them", "joint", None),
        ({"inputs": "[MASK]", "beam": 3}, 422, 'send "joint": true too', "beam", None),
        (
            {"inputs": "[MASK] " * 142, "joint": True, "beam": 10},
            413,
            f"the request takes {1 + 10 * 141} passes of the model with {(1 + 10 * 141) * 144} tokens in all",
            "too_large",
            None,
        ),
        (
            {"inputs": ["[MASK] " * 100] * 10, "targets": ["unaffable"]},
            413,
            f"the request takes 3000 passes of the model with {3000 * 104} tokens in all",
            "too_large",
            None,
        ),
    ],
)
def test_what_cannot_be_filled_is_refused_with_the_reason(
    server: httpx.Client, body: Any, status: int, sentence: str, code: str, index: int | None
) -> None:
    found = refuse(server, "/fill-mask", body)
    assert (found[0], found[2:]) == (status, (code, index))
    assert sentence in found[1]


def test_masks_filled_together_have_one_list_of_candidates_for_each_input(server: httpx.Client) -> None:
    one = post(server, "/fill-mask", inputs="the [MASK] is [MASK] [MASK]", joint=True)
    assert len(one) == 5
    for candidate in one:
        JointCandidate.model_validate(candidate)
        assert len(candidate["texts"]) == 2  # the last two masks are neighbours
        assert sorted(candidate["order"]) == [0, 1, 2]
        assert candidate["sequence"].startswith("the ")
    logs = [candidate["log_probability"] for candidate in one]
    assert logs == sorted(logs, reverse=True)
    assert len({tuple(candidate["tokens"]) for candidate in one}) == 5
    two = post(server, "/fill-mask", inputs=["the [MASK] is [MASK] [MASK]", "[MASK]"], joint=True)
    assert two[0] == one
    assert [len(found) for found in two] == [5, 5]
    nested = {"joint": True, "beam": 10, "top_k": 3}
    assert post(server, "/fill-mask", inputs=["the [MASK] is [MASK] [MASK]"], parameters=nested) == one[:3]


def test_one_mask_filled_by_joint_has_the_candidates_of_the_plain_request(server: httpx.Client) -> None:
    plain = post(server, "/fill-mask", inputs="the [MASK] is big", top_k=3)
    joint = post(server, "/fill-mask", inputs="the [MASK] is big", top_k=3, joint=True, beam=3)
    assert [one["tokens"] for one in joint] == [[one["token"]] for one in plain]
    assert [one["score"] for one in joint] == pytest.approx([one["score"] for one in plain])
    assert [one["texts"] for one in joint] == [[one["token_str"]] for one in plain]
    assert [one["sequence"] for one in joint] == [one["sequence"] for one in plain]


def test_a_wider_beam_finds_candidates_that_are_at_least_as_likely(server: httpx.Client) -> None:
    best = [
        post(server, "/fill-mask", inputs="a [MASK] [MASK] [MASK].", joint=True, beam=beam, top_k=1)[0]
        for beam in (1, 64)
    ]
    assert best[0]["log_probability"] <= best[1]["log_probability"]
