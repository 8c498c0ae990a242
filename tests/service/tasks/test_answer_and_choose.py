"""/answer and /choose over HTTP: the forms of requests, of answers and of errors; `POST /`; int8; in company."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from packbert.service.tasks.answer import best_spans
from tests.export.goldens import Artifact, answers
from tests.service.in_process import InProcessClient, serve_in_process

CONTEXT = "The cat sat on the mat in Paris, and it was warm. Unaffable dogs walked to London by the river."
ASKED = {"question": "Where is the cat?", "context": CONTEXT}
LONG = {"question": "Where is the cat?", "context": CONTEXT * 20}
PROMPT, CHOICES = "The cat sat on the mat.", ["It was warm.", "The dog drinks tea."]


@pytest.fixture(scope="module")
def spans(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("bert-spans").root) as client:
        yield client


@pytest.fixture(scope="module")
def choices(exported: Callable[..., Artifact]) -> Iterator[InProcessClient]:
    with serve_in_process(exported("bert-choices").root) as client:
        yield client


def post(client: InProcessClient, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def as_list(found: Any) -> list[dict[str, Any]]:
    return found if isinstance(found, list) else [found]


def error(client: InProcessClient, path: str, body: Any) -> tuple[int, str, str, int | None]:
    response = client.post(path, json=body)
    found = response.json()
    return response.status_code, found["code"], found["error"], found.get("index")


def test_questions_in_a_list_get_the_answers_of_each_alone(spans: InProcessClient) -> None:
    one = post(spans, "/answer", ASKED)
    assert CONTEXT[one["start"] : one["end"]] == one["answer"]
    assert post(spans, "/answer", {"inputs": [ASKED], "parameters": {}}) == [one]
    fields = {"top_k": 3, "max_answer_len": 2}
    several = post(spans, "/answer", ASKED | fields)
    assert len(several) == 3
    assert post(spans, "/answer", {"inputs": [LONG, ASKED], "parameters": fields})[1] == several


def test_more_than_one_answer_is_always_a_list_and_may_be_short(spans: InProcessClient) -> None:
    body = {"question": "Is it warm?", "context": "warm"}
    one = post(spans, "/answer", body)
    assert one["answer"] == "warm"
    assert post(spans, "/answer", body | {"top_k": 5}) == [one]
    both = post(spans, "/answer", body | {"top_k": 5, "handle_impossible_answer": True})
    assert sorted(found["answer"] for found in both) == ["", "warm"]
    assert sum(found["score"] for found in both) < 1


def test_a_long_context_is_read_to_its_end_in_windows(spans: InProcessClient) -> None:
    ending = LONG | {"context": LONG["context"] + " hello?"}
    found = post(spans, "/answer", ending | {"top_k": 1000, "max_answer_len": 1})
    words = re.findall(r"\w+|[^\w\s]", ending["context"])
    assert {word.lower() for word in words} <= {one["answer"].lower() for one in found}
    assert max(one["end"] for one in found) == len(ending["context"])
    narrow = spans.post("/answer", json=LONG | {"max_seq_len": 40, "doc_stride": 10})
    assert narrow.status_code == 200
    assert "x-truncated-inputs" not in narrow.headers
    cut = spans.post("/answer", json=LONG | {"max_question_len": 2})
    assert cut.headers["x-truncated-inputs"] == "1"


@pytest.mark.parametrize(
    ("body", "expected_error"),
    [
        ({"inputs": [ASKED, {"context": "a"}]}, (422, "invalid", "inputs.1.question: Field required", 1)),
        ({"inputs": [ASKED, ASKED | {"context": " "}]}, (422, "empty", "the context has no tokens", 1)),
        (ASKED | {"question": ""}, (422, "empty", "the question has no tokens", 0)),
        (LONG | {"doc_stride": 140}, (422, "stride", "a window holds 133 tokens of the context", 0)),
        (ASKED | {"top_k": 0}, (422, "invalid", "top_k: Input should be greater than or equal to 1", None)),
        (ASKED | {"truncate": True}, (422, "invalid", "truncate: there is no such field", None)),
        ({"inputs": [ASKED] * 101}, (413, "too_large", "the request has 101 inputs; at most 100", None)),
        (
            LONG | {"max_seq_len": 13, "doc_stride": 0, "context": CONTEXT * 50},
            (413, "too_large", "at most 100 are allowed (BERT_MAX_INPUTS)", None),
        ),
        (ASKED | {"context": "a" * 100_001}, (422, "too_long", "at most 100000 are allowed (BERT_MAX_CHARACTERS)", 0)),
    ],
)
def test_a_question_that_cannot_be_answered_gets_the_reason_and_its_index(
    spans: InProcessClient, body: Any, expected_error: tuple[int, str, str, int | None]
) -> None:
    status, code, sentence, index = error(spans, "/answer", body)
    assert (status, code, index) == (expected_error[0], expected_error[1], expected_error[3])
    assert expected_error[2] in sentence


def test_choices_of_a_list_are_ranked_as_those_of_each_prompt(choices: InProcessClient) -> None:
    whole = {"prompt": PROMPT, "choices": CHOICES}
    found = post(choices, "/choose", whole)
    assert [CHOICES[one["index"]] for one in found] == [one["choice"] for one in found]
    three = {"prompt": PROMPT, "choices": [*CHOICES, "a"]}
    assert post(choices, "/choose", {"inputs": [three, whole]}) == [post(choices, "/choose", three), found]


@pytest.mark.parametrize(
    ("wrong", "code", "sentence"),
    [
        ({"prompt": "a", "choices": []}, "empty", "choices is empty"),
        ({"prompt": "a", "choices": ["b", " "]}, "empty", "choice 1: input has no tokens"),
        ({"prompt": "a", "choices": ["b", "cat " * 200]}, "too_long", "choice 1: input has 204 tokens"),
    ],
)
def test_choices_that_cannot_be_ranked_get_the_reason_and_the_index_of_their_prompt(
    choices: InProcessClient, wrong: Any, code: str, sentence: str
) -> None:
    found = error(choices, "/choose", {"inputs": [{"prompt": "a", "choices": ["b", "c"]}, wrong]})
    assert (found[0], found[1], found[3]) == (422, code, 1)
    assert sentence in found[2]


def test_the_root_reads_questions_and_choices_by_the_form_of_the_request(
    spans: InProcessClient, choices: InProcessClient
) -> None:
    nested = {"inputs": [ASKED, LONG], "parameters": {"top_k": 2, "doc_stride": None}}
    assert post(spans, "/", nested) == post(spans, "/answer", nested)
    ranked = {"inputs": [{"prompt": PROMPT, "choices": CHOICES}]}
    assert post(choices, "/", ranked) == post(choices, "/choose", ranked)
    assert error(choices, "/", {"inputs": ASKED})[:2] == (501, "no_such_head")


@pytest.mark.parametrize("name", ["bert-spans", "roberta-spans", "albert-spans", "distilbert-spans"])
def test_int8_finds_the_best_answers_of_the_pipeline(name: str, exported: Callable[..., Artifact]) -> None:
    """Scores differ by at most 15 %, so of two answers whose scores are nearer to each other either may be the best."""
    different = 0
    with serve_in_process(exported(name, "int8").root) as client:
        for case in answers(name)["answer"]:
            body = {"question": case["question"], "context": case["context"]} | case["parameters"]
            expected, ours = as_list(case["answer"]), as_list(post(client, "/answer", body))[0]
            best = [one for one in expected if one["score"] >= 0.85 * expected[0]["score"]]
            same = [one for one in best if ours | {"score": 0} == one | {"score": 0}]
            if same:
                assert ours["score"] == pytest.approx(same[0]["score"], rel=0.3)
            else:
                different += 1
    assert different <= 1


@pytest.mark.parametrize("longest", [1, 3, 50])
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("count", [1, 4, 1000])
def test_the_likeliest_spans_are_those_of_all_pairs_of_tokens(length: int, longest: int, count: int) -> None:
    random = np.random.default_rng(length)
    start, end = random.random(length), random.random(length)
    pairs = [(s, e, start[s] * end[e]) for s in range(length) for e in range(s, min(length, s + longest))]
    expected_spans = sorted(pairs, key=lambda pair: -pair[2])[:count]
    assert list(best_spans(start, end, count, longest)) == expected_spans


def test_spans_without_any_probability_are_spans_all_the_same() -> None:
    assert len(list(best_spans(np.zeros(3), np.zeros(3), 10, 2))) == 5
