"""Every task on every family's golden checkpoint, through the real queue: what transformers' pipelines answered."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import pytest

from model_export.export import export
from service.artifact import open_artifact
from service.engine.local_backend import LocalBackend
from service.errors import NoSuchHead
from service.metrics import Metrics
from service.settings import Settings
from service.tasks import predict as labels
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import FillMaskRequest, NspRequest, PredictRequest, TagRequest
from tests.paths import GOLDEN
from tests.pipelines import same

Ask = Callable[[Tasks], Awaitable[list[TaskResult]]]


@cache
def answers(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name / "answers.json").read_text("utf-8"))
    return content


def having(task: str) -> list[str]:
    return [
        folder.parent.name for folder in sorted(GOLDEN.glob("*/answers.json")) if task in answers(folder.parent.name)
    ]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Ask], list[Any]]:
    """Opens an engine on a golden checkpoint's artifact and asks it; the answers' values."""
    root = tmp_path_factory.mktemp("artifacts")

    def asked(name: str, question: Ask) -> list[Any]:
        if not (root / name).exists():
            export(GOLDEN / name, root / name)
        settings = Settings(artifact=root / name, token_budget=256, threads=1)
        return asyncio.run(_asked(LocalBackend(open_artifact(root / name), settings, Metrics()), question))

    return asked


async def _asked(backend: LocalBackend, question: Ask) -> list[Any]:
    await backend.open()
    try:
        return [done.value for done in await question(backend.admit(0))]
    finally:
        await backend.close()


@pytest.mark.parametrize("name", having("fill_mask"))
def test_fill_mask_equals_the_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["fill_mask"]
    requests = [FillMaskRequest.model_validate({"inputs": case["inputs"]} | case["parameters"]) for case in cases]

    async def question(tasks: Tasks) -> list[TaskResult]:
        return await asyncio.gather(*(tasks.fill_mask(request, timeout_seconds=60) for request in requests))

    same(ask(name, question), [case["answer"] for case in cases])


@pytest.mark.parametrize("name", having("pairs"))
def test_a_pair_is_scored_under_the_labels_its_head_was_trained_on(
    name: str, ask: Callable[[str, Ask], list[Any]]
) -> None:
    cases = answers(name)["pairs"]
    first, second = ("in_order", "swapped") if name == "albert" else ("is_next", "not_next")

    async def question(tasks: Tasks) -> list[TaskResult]:
        return [
            await tasks.next_sentence(
                NspRequest(inputs=[[case["text"], case["text_pair"]] for case in cases]), timeout_seconds=60
            )
        ]

    for found, case in zip(ask(name, question)[0], cases, strict=True):
        assert list(found) == ["label", first, second]
        assert [found[first], found[second]] == pytest.approx(case["probabilities"], abs=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra"])
def test_a_family_without_a_pair_head_says_so_in_the_refusal(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    async def question(tasks: Tasks) -> list[TaskResult]:
        return [await tasks.next_sentence(NspRequest(inputs=[["a", "b"]]), timeout_seconds=60)]

    with pytest.raises(
        NoSuchHead, match=f"no pair head: family {name} has no sentence-pair head; it has cls, mean, fill_mask"
    ):
        ask(name, question)


@pytest.mark.parametrize("name", having("predict"))
def test_predict_equals_the_text_classification_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["predict"]
    batch = [[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"] for case in cases]

    async def question(tasks: Tasks) -> list[TaskResult]:
        one_by_one = [
            labels.predict(tasks, PredictRequest(inputs=case["inputs"]), timeout_seconds=60) for case in cases
        ]
        together = [
            labels.predict(tasks, PredictRequest(inputs=batch, raw_scores=raw), timeout_seconds=60)
            for raw in (False, True)
        ]
        return await asyncio.gather(*one_by_one, *together)

    *found, scores, raw = ask(name, question)
    same(found, [case["answer"] for case in cases])
    same(scores, [case["answer"] for case in cases])
    same(raw, [case["raw"] for case in cases])


@pytest.mark.parametrize("name", having("tag"))
def test_tag_equals_the_token_classification_pipeline(name: str, ask: Callable[[str, Ask], list[Any]]) -> None:
    cases = answers(name)["tag"]
    requests = [TagRequest(inputs=case["inputs"], aggregation_strategy=case["aggregation_strategy"]) for case in cases]

    async def question(tasks: Tasks) -> list[TaskResult]:
        return await asyncio.gather(*(labels.tag(tasks, request, timeout_seconds=60) for request in requests))

    same(ask(name, question), [case["answer"] for case in cases])
