"""/answer and /choose: every family's answers against transformers; forms of requests, of answers and of errors."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.service.tasks.answer import AnswerRequest, answer, best_spans
from packbert.service.tasks.choose import ChooseRequest, choose
from packbert.service.tasks.flow import TaskResult
from tests.export.goldens import NAMES, Exported, answers
from tests.service.in_process import ask_at_once

TOLERANCE = 1e-4
WITH_SPANS = [name for name in NAMES if name.endswith("-spans")]
WITH_CHOICES = [name for name in NAMES if name.endswith("-choices")]


def as_list(found: Any) -> list[dict[str, Any]]:
    """The answers that are possible at all: the pipeline fills a list with impossible ones, whose score is zero."""
    return [one for one in (found if isinstance(found, list) else [found]) if one["score"] > 0]


def same(found: Any, expected: Any) -> None:
    assert [one | {"score": 0} for one in as_list(found)] == [one | {"score": 0} for one in as_list(expected)]
    for one, other in zip(as_list(found), as_list(expected), strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=TOLERANCE)


def asked_cases(folder: Path, name: str) -> list[tuple[TaskResult, dict[str, Any]]]:
    """Each case of the golden checkpoint with its result in the artifact."""
    cases = answers(name)["answer"]
    bodies = [{"question": case["question"], "context": case["context"]} | case["parameters"] for case in cases]
    results = ask_at_once(folder, [(answer, AnswerRequest.model_validate(body)) for body in bodies])
    return list(zip(results, cases, strict=True))


@pytest.mark.parametrize("name", WITH_SPANS)
def test_answers_and_their_places_are_those_of_the_pipeline(name: str, exported: Exported) -> None:
    found = asked_cases(exported(name).root, name)
    for result, case in found:
        same(result.value, case["answer"])
    assert max(len(result.sequences) for result, _ in found) > 3  # windows


@pytest.mark.parametrize("name", WITH_CHOICES)
def test_scores_of_choices_are_the_softmax_of_transformers_logits(name: str, exported: Exported) -> None:
    cases = answers(name)["choose"]
    bodies: list[Any] = [{"prompt": case["prompt"], "choices": case["choices"]} for case in cases]
    asked = [(choose, ChooseRequest.model_validate(body)) for body in (*bodies, {"inputs": bodies})]
    *alone, together = (result.value for result in ask_at_once(exported(name).root, asked))
    assert alone == together
    for found, case in zip(alone, cases, strict=True):
        assert [one["index"] for one in found] == np.argsort(-np.array(case["scores"]), kind="stable").tolist()
        for one in found:
            assert one["score"] == pytest.approx(case["scores"][one["index"]], abs=TOLERANCE)
            assert one["choice"] == case["choices"][one["index"]]


CONTEXT = "The cat sat on the mat in Paris, and it was warm. Unaffable dogs walked to London by the river."


def test_a_long_context_is_read_to_its_end_in_windows(exported: Exported) -> None:
    context = CONTEXT * 20 + " hello?"
    body = {"question": "Where is the cat?", "context": context, "top_k": 1000, "max_answer_len": 1}
    (result,) = ask_at_once(exported("bert-spans").root, [(answer, AnswerRequest.model_validate(body))])
    words = re.findall(r"\w+|[^\w\s]", context)
    assert {word.lower() for word in words} <= {one["answer"].lower() for one in result.value}
    assert max(one["end"] for one in result.value) == len(context)


@pytest.mark.parametrize("name", ["bert-spans", "albert-spans"])
def test_int8_finds_the_best_answers_of_the_pipeline(name: str, exported: Exported) -> None:
    """Scores differ by at most 15 %, so of two answers whose scores are nearer to each other either may be the best."""
    different = 0
    for result, case in asked_cases(exported(name, "int8").root, name):
        expected, ours = as_list(case["answer"]), as_list(result.value)[0]
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
