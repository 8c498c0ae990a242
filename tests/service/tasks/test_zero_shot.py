"""/predict with candidate_labels: transformers' zero-shot classification pipeline, its shapes, and what is refused."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.export import export
from packbert.service.errors import NoSuchHead
from packbert.service.tasks.flow import Tasks, answer_request
from packbert.service.tasks.predict import PredictRequest
from packbert.service.tasks.zero_shot import entailment_scores, find_entailment, predict_labels
from tests.export.goldens import answers
from tests.paths import GOLDEN
from tests.service.in_process import InProcessClient, ask_tasks, serve_in_process

FOLDER = GOLDEN / "zero-shot"
FAMILIES = sorted(folder.parent.name for folder in FOLDER.glob("*/answers.json"))
TEXTS: list[str] = answers("zero-shot/texts")
TOLERANCE = {"fp32": 1e-4, "int8": 0.2}  # int8: as for single channels of these small models


@pytest.fixture(scope="module")
def entailment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The artifact of a golden classifier with the labels of entailment."""
    root = tmp_path_factory.mktemp("entailment")

    def made(family: str, precision: str = "fp32") -> Path:
        folder = root / f"{family}-{precision}"
        if not folder.exists():
            checkpoint = root / f"{family}-{precision}-checkpoint"
            shutil.copytree(GOLDEN / f"{family}-labels", checkpoint)
            shutil.copy(FOLDER / family / "config.json", checkpoint)
            export(checkpoint, folder, precision=precision)
        return folder

    return made


@pytest.fixture(scope="module")
def client(entailment: Callable[..., Path]) -> Iterator[InProcessClient]:
    with serve_in_process(entailment("bert")) as opened:
        yield opened


async def ask(tasks: Tasks, **body: Any) -> Any:
    return (await answer_request(tasks, predict_labels, PredictRequest.model_validate(body))).value


def bodies_of(family: str) -> list[dict[str, Any]]:
    return [
        {"inputs": TEXTS[case["text"]], "parameters": case["parameters"]} for case in answers(f"zero-shot/{family}")
    ]


@pytest.mark.parametrize(("family", "precision"), [*((family, "fp32") for family in FAMILIES), ("bert", "int8")])
def test_scores_are_those_of_the_pipeline(family: str, precision: str, entailment: Callable[..., Path]) -> None:
    async def question(tasks: Tasks) -> Any:
        return [await ask(tasks, **body) for body in bodies_of(family)]

    answered = ask_tasks(entailment(family, precision), question, truncate=True)
    for found, case in zip(answered, answers(f"zero-shot/{family}"), strict=True):
        assert list(found) == ["sequence", "labels", "scores"]
        assert found["sequence"] == TEXTS[case["text"]]
        assert found["scores"] == sorted(found["scores"], reverse=True)
        got, want = (dict(zip(one["labels"], one["scores"], strict=True)) for one in (found, case))
        assert got == pytest.approx(want, abs=TOLERANCE[precision])
        if precision == "fp32" and min(-np.diff(case["scores"]), default=1) > 1e-5:
            assert found["labels"] == case["labels"]


@pytest.mark.parametrize("template", ["it is about", "{{}}", "{", "{label}", "{0.__class__}", "{:>9999999999}", "{!r}"])
def test_a_template_without_a_plain_gap_is_refused(client: InProcessClient, template: str) -> None:
    body = {"inputs": "a", "candidate_labels": ["b"], "hypothesis_template": template}
    response = client.post("/predict", json=body)
    assert (response.status_code, response.json()["code"]) == (422, "hypothesis_template")
    assert f"hypothesis_template is {template!r}; it needs {{}} where the label goes" in response.json()["error"]


def test_the_first_label_that_begins_with_entail_is_it() -> None:
    assert find_entailment(["not_entailment", "Entails", "entailment"]) == 1
    with pytest.raises(NoSuchHead, match="this model has a, not_entailment"):
        find_entailment(["a", "not_entailment"])


@pytest.mark.parametrize(("entailment", "contradiction"), [(0, 2), (1, 0), (2, 0)])
def test_contradiction_is_the_first_class_or_the_last_where_entailment_is_first(
    entailment: int, contradiction: int
) -> None:
    logits = np.random.default_rng(3).standard_normal((2, 4, 3))
    powers = np.exp(logits)
    alone = powers[..., entailment] / (powers[..., entailment] + powers[..., contradiction])
    np.testing.assert_allclose(entailment_scores(logits, entailment, alone=True), alone)
    one = entailment_scores(logits[:, :1], entailment, alone=False)
    np.testing.assert_allclose(one, alone[:, :1])
    np.testing.assert_allclose(entailment_scores(logits, entailment, alone=False).sum(axis=1), 1.0)
