"""/predict with candidate_labels: transformers' zero-shot classification pipeline, its shapes, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pytest

from packbert.service.errors import NoSuchHead
from packbert.service.tasks.predict import PredictRequest
from packbert.service.tasks.zero_shot import entailment_scores, find_entailment, predict_labels
from tests.checkpoints import names_in
from tests.export.goldens import Exported, answers
from tests.service.in_process import InProcessClient, ask_at_once, serve_in_process

NAMES = names_in("zero-shot")
TEXTS: list[str] = answers("zero-shot/texts")
TOLERANCE = {"fp32": 1e-4, "int8": 0.2}  # int8: as for single channels of these small models


@pytest.fixture(scope="module")
def client(exported: Exported) -> Iterator[InProcessClient]:
    with serve_in_process(exported("zero-shot/bert").root) as opened:
        yield opened


@pytest.mark.parametrize(("name", "precision"), [*((name, "fp32") for name in NAMES), ("zero-shot/bert", "int8")])
def test_scores_are_those_of_the_pipeline(name: str, precision: str, exported: Exported) -> None:
    cases = answers(name)
    bodies = [{"inputs": TEXTS[case["text"]], "parameters": case["parameters"]} for case in cases]
    asked = [(predict_labels, PredictRequest.model_validate(body)) for body in bodies]
    results = ask_at_once(exported(name, precision).root, asked, truncate=True)
    for found, case in zip((result.value for result in results), cases, strict=True):
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
