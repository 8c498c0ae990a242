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
