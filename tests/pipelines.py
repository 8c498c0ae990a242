"""Answers of the service beside those of transformers' pipelines."""

from typing import Any

import pytest


def same(found: Any, expected: Any) -> None:
    """Equal in every shape, key, order and word; scores to 1e-5."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    assert list(found) == list(expected)
    assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
    assert found | {"score": 0} == expected | {"score": 0}


def as_pipeline(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of /fill-mask that score a target of several pieces by its first piece, as the pipeline does."""
    return parameters | ({"first_piece": True} if "targets" in parameters else {})


def without_targets(answer: Any) -> Any:
    """/fill-mask's answer without the targets' names, which the pipeline does not give."""
    if isinstance(answer, list):
        return [without_targets(one) for one in answer]
    return {key: value for key, value in answer.items() if key != "target"}
