"""What a classifier's logits are called and how they become scores, read off config.json as transformers reads it."""

from typing import Any, cast

import pytest

from model_export.checkpoints.class_labels import classifier_of
from model_export.checkpoints.families import NamedWeights
from model_export.errors import ExportError


class Fine:
    """A checkpoint's parts, with a classifier of texts among them."""

    def has(self, part: str) -> bool:
        return part == "labels"


def classifier(**config: Any) -> tuple[tuple[str, ...], str]:
    found = classifier_of({"architectures": ["BertForSequenceClassification"]} | config, cast(NamedWeights, Fine()))
    return found.names, found.scores


@pytest.mark.parametrize(
    ("config", "names", "scores"),
    [
        ({"id2label": {"0": "relevant"}}, ("relevant",), "sigmoid"),
        ({"id2label": {"1": "good", "0": "bad"}}, ("bad", "good"), "softmax"),
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "none"),
    ],
)
def test_labels_have_their_names_in_order_and_the_scores_of_the_pipeline(
    config: dict[str, Any], names: tuple[str, ...], scores: str
) -> None:
    assert classifier(**config) == (names, scores)


@pytest.mark.parametrize("numbers", [{"0": "a", "2": "b"}, {"1": "a"}, {"first": "a"}])
def test_labels_whose_numbers_do_not_count_from_zero_are_refused(numbers: dict[str, str]) -> None:
    with pytest.raises(ExportError, match="id2label has"):
        classifier(id2label=numbers)
