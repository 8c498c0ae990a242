"""Every task on every family's golden checkpoint, through the real queue, against transformers' pipelines."""

import math
from functools import partial
from typing import Any

import pytest

from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.flow import Read, Tasks
from packbert.service.tasks.inputs import NspRequest, TruncationFields
from packbert.service.tasks.likelihood import score_sentences
from packbert.service.tasks.pairs import nsp
from packbert.service.tasks.predict import PredictRequest, predict
from packbert.service.tasks.tag import TagRequest, tag
from tests.export.goldens import Exported, answers
from tests.paths import GOLDEN
from tests.pipelines import as_pipeline, same, without_targets
from tests.service.in_process import ask_at_once, values_at_once


def checkpoints_with(task: str) -> list[str]:
    return [
        folder.parent.name for folder in sorted(GOLDEN.glob("*/answers.json")) if task in answers(folder.parent.name)
    ]


def fill(body: dict[str, Any]) -> tuple[Read, FillMaskRequest]:
    return fill_mask, FillMaskRequest.model_validate(body)


@pytest.mark.parametrize("name", checkpoints_with("fill_mask"))
def test_fill_mask_equals_the_pipeline(name: str, exported: Exported) -> None:
    cases = answers(name)["fill_mask"]
    bodies = [{"inputs": case["inputs"]} | as_pipeline(case["parameters"]) for case in cases]
    found = values_at_once(exported(name).root, *map(fill, bodies))
    same(without_targets(found), [case["answer"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("pairs"))
def test_nsp_equals_the_pair_head_and_uses_the_labels_of_its_training(name: str, exported: Exported) -> None:
    cases = answers(name)["pairs"]
    first, second = ("in_order", "swapped") if name == "albert" else ("is_next", "not_next")
    request = NspRequest.model_validate({"inputs": [[case["text"], case["text_pair"]] for case in cases]})
    (result,) = ask_at_once(exported(name).root, [(nsp, request)])
    for found, case in zip(result.value, cases, strict=True):
        assert list(found) == ["label", first, second]
        assert [found[first], found[second]] == pytest.approx(case["probabilities"], abs=1e-5)


@pytest.mark.parametrize("name", checkpoints_with("predict"))
def test_predict_equals_the_text_classification_pipeline(name: str, exported: Exported) -> None:
    cases = answers(name)["predict"]
    batch = [[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"] for case in cases]
    asked = [PredictRequest(inputs=case["inputs"]) for case in cases]
    asked += [PredictRequest(inputs=batch, raw_scores=raw) for raw in (False, True)]
    *found, scores, raw = values_at_once(exported(name).root, *((predict, one) for one in asked))
    same(found, [case["answer"] for case in cases])
    same(scores, [case["answer"] for case in cases])
    same(raw, [case["raw"] for case in cases])


@pytest.mark.parametrize("name", checkpoints_with("tag"))
def test_tag_equals_the_token_classification_pipeline(name: str, exported: Exported) -> None:
    """Also by windows, for texts that fit into one."""
    cases = answers(name)["tag"]
    grouped = [case for case in cases if case["parameters"]["aggregation_strategy"] != "none"]
    cases += [case | {"parameters": case["parameters"] | {"long": "windows"}} for case in grouped]
    asked = [TagRequest.model_validate({"inputs": case["inputs"]} | case["parameters"]) for case in cases]
    found = values_at_once(exported(name).root, *((tag, one) for one in asked))
    same(found, [case["answer"] for case in cases])


SENTENCES = sorted(file.stem for file in (GOLDEN / "sentences").glob("*.json"))
TOLERANCE = {"fp32": 1e-4, "int8": 0.35}  # of a log-probability; int8 as for single channels of these small models
each_family = pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in SENTENCES), ("bert", "int8"), ("roberta", "int8")]
)
VARIANTS: tuple[Any, ...] = ("within_word", "original")


async def score(tasks: Tasks, _: None, texts: list[str], variant: Any) -> Any:
    return await score_sentences(tasks, texts, TruncationFields(), variant)


@each_family
def test_a_likelihood_has_the_log_probability_of_each_masked_token(
    name: str, precision: str, exported: Exported
) -> None:
    known = answers(f"sentences/{name}")["score"]
    cases = {variant: [one for one in known if one["variant"] == variant] for variant in VARIANTS}
    texts = [one["text"] for one in cases["original"]]
    asked = [(partial(score, texts=texts, variant=variant), None) for variant in VARIANTS]
    results = ask_at_once(exported(name, precision).root, asked)
    for result, variant in zip(results, VARIANTS, strict=True):
        assert result.tokens == sum(one["cost_tokens"] for one in cases[variant])
        for found, one in zip(result.value, cases[variant], strict=True):
            logs = [token["log_probability"] for token in one["tokens"]]
            assert [token.pop("log_probability") for token in found["tokens"]] == pytest.approx(
                logs, abs=TOLERANCE[precision]
            )
            assert found["tokens"] == [
                {key: value for key, value in token.items() if key != "log_probability"} for token in one["tokens"]
            ]
            assert (found["variant"], found["cost_tokens"]) == (variant, one["cost_tokens"])
            total = found["pseudo_log_likelihood"]
            assert total == pytest.approx(sum(logs), abs=TOLERANCE[precision] * len(logs))
            assert found["per_token"] == pytest.approx(total / len(logs))
            assert found["per_word"] == pytest.approx(total / one["words"])
            assert found["pseudo_perplexity"] == pytest.approx(math.exp(-total / len(logs)))


@each_family
def test_words_of_several_pieces_are_scored_from_left_to_right(name: str, precision: str, exported: Exported) -> None:
    cases, tolerance = answers(f"sentences/{name}")["words"], TOLERANCE[precision]
    bodies = [
        {"inputs": one["inputs"], "targets": one["targets"], "top_k": one["top_k"] if precision == "fp32" else 5}
        for one in cases
    ]
    results = ask_at_once(exported(name, precision).root, map(fill, bodies))
    for result, one in zip(results, cases, strict=True):
        per_mask = result.value if len(one["answer"]) > 1 else [result.value]
        for found, expected in zip(per_mask, one["answer"], strict=True):
            assert [x["score"] for x in found] == sorted((x["score"] for x in found), reverse=True)
            if precision == "fp32":
                assert [x["target"] for x in found] == [x["target"] for x in expected]
            by_target = {x["target"]: x for x in found}
            for want in expected:
                got = by_target[want["target"]]
                assert got["log_probability"] == pytest.approx(
                    want["log_probability"], abs=tolerance * len(want["tokens"])
                )
                assert (got["tokens"], got["token"]) == (want["tokens"], want["tokens"][0])
                assert len(got["pieces"]) == len(want["tokens"])
                assert got["log_probability_per_piece"] == pytest.approx(got["log_probability"] / len(want["tokens"]))
                assert got["score"] == pytest.approx(math.exp(got["log_probability_per_piece"]))


@pytest.mark.parametrize("name", SENTENCES)
def test_masks_filled_together_are_those_of_a_slow_beam_search(name: str, exported: Exported) -> None:
    cases = answers(f"sentences/{name}")["joint"]
    bodies = [{"inputs": one["inputs"], "joint": True, "beam": one["beam"], "top_k": one["top_k"]} for one in cases]
    results = ask_at_once(exported(name).root, map(fill, bodies))
    for result, one in zip(results, cases, strict=True):
        for found, expected in zip(result.value, one["answer"], strict=True):
            assert found["log_probability"] == pytest.approx(expected["log_probability"], abs=1e-4)
            assert {key: found[key] for key in ("tokens", "order", "sequence")} == {
                key: expected[key] for key in ("tokens", "order", "sequence")
            }
            assert found["score"] == pytest.approx(math.exp(found["log_probability"]))
            assert sum(found["log_probabilities"]) == pytest.approx(found["log_probability"])
