"""A classifier's labels and score function come from config.json, as in transformers."""

from typing import Any, cast

import pytest

from packbert.model_export.checkpoint import NamedWeights
from packbert.model_export.errors import ExportError
from packbert.model_export.labels import classifier_of


class SequenceClassifier:
    """The weights of a checkpoint with a classifier of texts into two classes."""

    head = ""

    def has(self, part: str) -> bool:
        return part == "labels"

    def rows(self, part: str) -> int:
        return 2 if part == "labels" else 0


def classifier(**config: Any) -> tuple[tuple[str, ...], str]:
    found = classifier_of(
        {"architectures": ["BertForSequenceClassification"]} | config, cast(NamedWeights, SequenceClassifier())
    )
    return found.names, found.scores


@pytest.mark.parametrize(
    ("config", "names", "scores"),
    [
        ({"id2label": {"0": "relevant"}}, ("relevant",), "sigmoid"),
        ({"id2label": {"1": "good", "0": "bad"}}, ("bad", "good"), "softmax"),
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "none"),
    ],
)
def test_labels_are_in_order_and_the_score_function_is_the_pipelines(
    config: dict[str, Any], names: tuple[str, ...], scores: str
) -> None:
    assert classifier(**config) == (names, scores)


@pytest.mark.parametrize("numbers", [{"0": "a", "2": "b"}, {"1": "a"}, {"first": "a"}])
def test_labels_that_are_not_numbered_from_zero_are_refused(numbers: dict[str, str]) -> None:
    with pytest.raises(
        ExportError, match=r"id2label has the numbers .*; they must be 0 to .: number the labels as the"
    ):
        classifier(id2label=numbers)
