"""Every task on every family's golden checkpoint, through the real queue, against transformers' pipelines."""

from typing import Any

import httpx
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.errors import NoSuchHead
from packbert.service.http.dialects.native import ROUTES
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.flow import TaskResult
from packbert.service.tasks.inputs import NspRequest
from packbert.service.tasks.pairs import nsp
from packbert.service.tasks.predict import PredictRequest, predict
from packbert.service.tasks.tag import TagRequest, tag
from tests.export.goldens import Exported, answers
from tests.paths import GOLDEN
from tests.pipelines import as_pipeline, same, without_targets
from tests.service.in_process import ask_at_once
from tests.service.tasks.fake_vectors import tasks_with_vectors


def checkpoints_with(task: str) -> list[str]:
    return [
        folder.parent.name for folder in sorted(GOLDEN.glob("*/answers.json")) if task in answers(folder.parent.name)
    ]


def values(results: list[TaskResult]) -> list[Any]:
    return [one.value for one in results]


@pytest.mark.parametrize("name", checkpoints_with("fill_mask"))
def test_fill_mask_equals_the_pipeline(name: str, exported: Exported) -> None:
    cases = answers(name)["fill_mask"]
    bodies = [{"inputs": case["inputs"]} | as_pipeline(case["parameters"]) for case in cases]
    found = ask_at_once(exported(name).root, [(fill_mask, FillMaskRequest.model_validate(body)) for body in bodies])
    same(without_targets(values(found)), [case["answer"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("pairs"))
def test_nsp_equals_the_pair_head_and_uses_the_labels_of_its_training(name: str, exported: Exported) -> None:
    cases = answers(name)["pairs"]
    first, second = ("in_order", "swapped") if name == "albert" else ("is_next", "not_next")
    request = NspRequest.model_validate({"inputs": [[case["text"], case["text_pair"]] for case in cases]})
    (result,) = ask_at_once(exported(name).root, [(nsp, request)])
    for found, case in zip(result.value, cases, strict=True):
        assert list(found) == ["label", first, second]
        assert [found[first], found[second]] == pytest.approx(case["probabilities"], abs=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra"])
def test_nsp_without_a_pair_head_is_an_error_with_the_reason(name: str, exported: Exported) -> None:
    heads = "cls, mean, tokens, layers, fill_mask"
    with pytest.raises(NoSuchHead, match=f"no pair head: family {name} has no sentence-pair head; it has {heads}"):
        ROUTES["/nsp"].check_head(tasks_with_vectors(open_artifact(exported(name).root)))


@pytest.mark.parametrize("name", checkpoints_with("predict"))
def test_predict_equals_the_text_classification_pipeline(name: str, exported: Exported) -> None:
    cases = answers(name)["predict"]
    batch = [[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"] for case in cases]
    asked = [PredictRequest(inputs=case["inputs"]) for case in cases]
    asked += [PredictRequest(inputs=batch, raw_scores=raw) for raw in (False, True)]
    *found, scores, raw = values(ask_at_once(exported(name).root, [(predict, one) for one in asked]))
    same(found, [case["answer"] for case in cases])
    same(scores, [case["answer"] for case in cases])
    same(raw, [case["raw"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("tag"))
def test_tag_equals_the_token_classification_pipeline(name: str, exported: Exported) -> None:
    cases = answers(name)["tag"]
    asked = [TagRequest.model_validate({"inputs": case["inputs"]} | case["parameters"]) for case in cases]
    found = ask_at_once(exported(name).root, [(tag, one) for one in asked])
    same(values(found), [case["answer"] for case in cases])


def test_tag_offsets_are_python_string_indices_for_chinese_and_emoji(tagger: httpx.Client) -> None:
    text = "😀 hello 北京 👩‍👩‍👧 world"
    tags = tagger.post("/tag", json={"inputs": text}).json()
    assert {text[one["start"] : one["end"]] for one in tags} <= {"😀", "hello", "北", "京", "👩‍👩‍👧", "world"}
    assert [text[one["start"] : one["end"]] for one in tags] == [one["word"] for one in tags]
    assert len(tags) >= 3
