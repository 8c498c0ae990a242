"""Every task on every family's golden checkpoint, through the real queue, against transformers' pipelines."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from packbert.service.errors import NoSuchHead
from packbert.service.http.dialects.native import ROUTES
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.flow import TaskResult, Tasks, answer_request
from packbert.service.tasks.inputs import NspRequest
from packbert.service.tasks.pairs import nsp
from packbert.service.tasks.predict import PredictRequest, predict
from packbert.service.tasks.tag import TagRequest, tag
from tests.export.goldens import Artifact, answers
from tests.paths import GOLDEN
from tests.pipelines import as_pipeline, same, without_targets
from tests.service.in_process import ask_engine

Ask = Callable[[Tasks], Awaitable[list[TaskResult]]]


def checkpoints_with(task: str) -> list[str]:
    return [
        folder.parent.name for folder in sorted(GOLDEN.glob("*/answers.json")) if task in answers(folder.parent.name)
    ]


@pytest.fixture(scope="module")
def ask(exported: Callable[..., Artifact]) -> Callable[[str, Ask], list[Any]]:
    """Runs a question on an engine with a golden checkpoint's artifact and returns the values of its results."""

    async def values(question: Ask, tasks: Tasks) -> list[Any]:
        return [done.value for done in await question(tasks)]

    return lambda name, question: ask_engine(exported(name).root, partial(values, question))


@pytest.mark.parametrize("name", checkpoints_with("fill_mask"))
def test_fill_mask_equals_the_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["fill_mask"]
    bodies = [{"inputs": case["inputs"]} | as_pipeline(case["parameters"]) for case in cases]
    requests = [FillMaskRequest.model_validate(body) for body in bodies]

    async def question(tasks: Tasks) -> list[TaskResult]:
        return await asyncio.gather(*(answer_request(tasks, fill_mask, request) for request in requests))

    same(without_targets(ask(name, question)), [case["answer"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("pairs"))
def test_nsp_equals_the_pair_head_and_uses_the_labels_of_its_training(
    name: str, ask: Callable[[str, Ask], list[Any]]
) -> None:
    cases = answers(name)["pairs"]
    first, second = ("in_order", "swapped") if name == "albert" else ("is_next", "not_next")

    async def question(tasks: Tasks) -> list[TaskResult]:
        inputs: Any = [[case["text"], case["text_pair"]] for case in cases]
        return [await answer_request(tasks, nsp, NspRequest(inputs=inputs))]

    for found, case in zip(ask(name, question)[0], cases, strict=True):
        assert list(found) == ["label", first, second]
        assert [found[first], found[second]] == pytest.approx(case["probabilities"], abs=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra"])
def test_nsp_without_a_pair_head_is_an_error_with_the_reason(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    async def question(tasks: Tasks) -> list[TaskResult]:
        ROUTES["/nsp"].check_head(tasks)
        return []

    heads = "cls, mean, tokens, layers, fill_mask"
    with pytest.raises(NoSuchHead, match=f"no pair head: family {name} has no sentence-pair head; it has {heads}"):
        ask(name, question)


@pytest.mark.parametrize("name", checkpoints_with("predict"))
def test_predict_equals_the_text_classification_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["predict"]
    batch = [[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"] for case in cases]

    async def question(tasks: Tasks) -> list[TaskResult]:
        asked = [PredictRequest(inputs=case["inputs"]) for case in cases]
        asked += [PredictRequest(inputs=batch, raw_scores=raw) for raw in (False, True)]
        return await asyncio.gather(*(answer_request(tasks, predict, one) for one in asked))

    *found, scores, raw = ask(name, question)
    same(found, [case["answer"] for case in cases])
    same(scores, [case["answer"] for case in cases])
    same(raw, [case["raw"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("tag"))
def test_tag_equals_the_token_classification_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["tag"]
    requests = [TagRequest.model_validate({"inputs": case["inputs"]} | case["parameters"]) for case in cases]

    async def question(tasks: Tasks) -> list[TaskResult]:
        return await asyncio.gather(*(answer_request(tasks, tag, request) for request in requests))

    same(ask(name, question), [case["answer"] for case in cases])


def test_tag_offsets_are_python_string_indices_for_chinese_and_emoji(tagger: httpx.Client) -> None:
    text = "😀 hello 北京 👩‍👩‍👧 world"
    tags = tagger.post("/tag", json={"inputs": text}).json()
    assert {text[one["start"] : one["end"]] for one in tags} <= {"😀", "hello", "北", "京", "👩‍👩‍👧", "world"}
    assert [text[one["start"] : one["end"]] for one in tags] == [one["word"] for one in tags]
    assert len(tags) >= 3
