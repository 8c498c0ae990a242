"""What a fine-tuned checkpoint's classifier says: of texts or of tokens, with which labels, and how its logits become scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_export.errors import ExportError
from model_export.families import Parts

TASKS = {"ForSequenceClassification": "labels", "ForTokenClassification": "tags"}  # end of the class's name -> our output
SCORES = {"regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    output: str  # "labels" (of a text), "tags" (of each token), "" where the checkpoint has no classifier
    names: tuple[str, ...]  # of the logits, in order
    scores: str  # what makes scores of a text's logits: "softmax", "sigmoid", "none" (a regression's numbers)


NOTHING = Classifier(output="", names=(), scores="none")


def classifier_of(config: Mapping[str, Any], parts: Parts) -> Classifier:
    """Raises ExportError where the checkpoint has a classifier and its config does not say of what."""
    if not (parts.has("labels") or parts.has("tags")):
        return NOTHING
    kinds = [str(name) for name in config.get("architectures") or ()]
    outputs = {output for name in kinds for end, output in TASKS.items() if name.endswith(end)}
    if len(outputs) != 1:
        raise ExportError(
            f"the checkpoint has a classifier, but config.json's architectures is {kinds}: it must name one class that ends in {' or '.join(TASKS)}"
        )
    names = _names(config)
    problem = config.get("problem_type")
    if problem is not None and problem not in SCORES:
        raise ExportError(f"config.json sets problem_type to {problem!r}; this exporter knows {', '.join(sorted(SCORES))}")
    usual = "sigmoid" if len(names) == 1 else "softmax"
    return Classifier(output=outputs.pop(), names=names, scores=SCORES[problem] if problem else usual)


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """id2label in the order of its numbers; LABEL_0 and so on where the config only counts them."""
    stated = config.get("id2label")
    if not isinstance(stated, Mapping):
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))
    try:
        numbered = {int(number): str(name) for number, name in stated.items()}
    except ValueError:
        raise ExportError(f"config.json's id2label has a key that is no number: {sorted(stated)}") from None
    if sorted(numbered) != list(range(len(numbered))):
        raise ExportError(f"config.json's id2label has the numbers {sorted(numbered)}; they must be 0 to {len(numbered) - 1}")
    return tuple(numbered[number] for number in range(len(numbered)))
