"""/answer and /choose on every family's golden checkpoint, through the real queue, against transformers."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from packbert.service.tasks.answer import AnswerRequest, answer
from packbert.service.tasks.choose import ChooseRequest, choose
from packbert.service.tasks.flow import Tasks, answer_request
from tests.export.goldens import NAMES, Artifact, answers
from tests.service.in_process import ask_engine

TOLERANCE = 1e-4
WITH_SPANS = [name for name in NAMES if name.endswith("-spans")]
WITH_CHOICES = [name for name in NAMES if name.endswith("-choices")]
Question = Callable[[Tasks], Any]


@pytest.fixture(scope="module")
def ask(exported: Callable[..., Artifact]) -> Callable[[str, str, Question], Any]:
    """What a question to an engine with a golden checkpoint's artifact returns."""
    return lambda name, precision, question: ask_engine(exported(name, precision).root, question)


def as_list(found: Any) -> list[dict[str, Any]]:
    """The answers that are possible at all: the pipeline fills a list with impossible ones, whose score is zero."""
    return [one for one in (found if isinstance(found, list) else [found]) if one["score"] > 0]


def same(found: Any, expected: Any) -> None:
    assert [one | {"score": 0} for one in as_list(found)] == [one | {"score": 0} for one in as_list(expected)]
    for one, other in zip(as_list(found), as_list(expected), strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=TOLERANCE)


def requests(name: str) -> list[AnswerRequest]:
    return [
        AnswerRequest.model_validate({"question": case["question"], "context": case["context"]} | case["parameters"])
        for case in answers(name)["answer"]
    ]


@pytest.mark.parametrize("name", WITH_SPANS)
def test_answers_and_their_places_are_those_of_the_pipeline(
    name: str, ask: Callable[[str, str, Question], Any]
) -> None:
    async def question(tasks: Tasks) -> Any:
        return await asyncio.gather(*(answer_request(tasks, answer, request) for request in requests(name)))

    results = ask(name, "fp32", question)
    for result, case in zip(results, answers(name)["answer"], strict=True):
        same(result.value, case["answer"])
    assert max(len(result.sequences) for result in results) > 3  # windows


@pytest.mark.parametrize("name", WITH_CHOICES)
def test_scores_of_choices_are_the_softmax_of_transformers_logits(
    name: str, ask: Callable[[str, str, Question], Any]
) -> None:
    cases = answers(name)["choose"]

    async def question(tasks: Tasks) -> Any:
        bodies = [{"prompt": case["prompt"], "choices": case["choices"]} for case in cases]
        asked = [ChooseRequest.model_validate(body) for body in (*bodies, {"inputs": bodies})]
        results = await asyncio.gather(*(answer_request(tasks, choose, one) for one in asked))
        return [result.value for result in results]

    *alone, together = ask(name, "fp32", question)
    assert alone == together
    for found, case in zip(alone, cases, strict=True):
        assert [one["index"] for one in found] == np.argsort(-np.array(case["scores"]), kind="stable").tolist()
        for one in found:
            assert one["score"] == pytest.approx(case["scores"][one["index"]], abs=TOLERANCE)
            assert one["choice"] == case["choices"][one["index"]]
