"""What the heads' logits are called: a classifier's labels and how its logits become scores, the two sides of the pair head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.families import Family, NamedWeights, whole
from model_export.errors import ExportError

TASKS = {
    "ForSequenceClassification": "labels",
    "ForTokenClassification": "tags",
}  # end of the class's name -> our output
PAIRS = {
    "is_next": ("is_next", "not_next"),
    "order": ("in_order", "swapped"),
}  # what the head was trained on -> its labels
SCORES = {"regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    output: str  # "labels" (of a text), "tags" (of each token), "" where the checkpoint has no classifier
    names: tuple[str, ...]  # of the logits, in order
    scores: str  # what makes scores of a text's logits: "softmax", "sigmoid", "none" (a regression's numbers)


NOTHING = Classifier(output="", names=(), scores="none")


def classifier_of(config: Mapping[str, Any], parts: NamedWeights) -> Classifier:
    """Raises ExportError where the checkpoint has a classifier and its config does not say of what."""
    if not (parts.has("labels") or parts.has("tags")):
        return NOTHING
    stated = config.get("architectures")
    kinds = [str(name) for name in stated] if isinstance(stated, list) else []
    outputs = {output for name in kinds for end, output in TASKS.items() if name.endswith(end)}
    if len(outputs) != 1:
        raise ExportError(
            f"the checkpoint has a classifier, but config.json's architectures is {kinds}: it must name one class that ends in {' or '.join(TASKS)}"
        )
    names = _names(config)
    problem = config.get("problem_type")
    if problem is not None and str(problem) not in SCORES:
        raise ExportError(
            f"config.json sets problem_type to {problem!r}; this exporter knows {', '.join(sorted(SCORES))}"
        )
    usual = "sigmoid" if len(names) == 1 else "softmax"
    return Classifier(output=outputs.pop(), names=names, scores=SCORES[problem] if problem else usual)


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """id2label in the order of its numbers; LABEL_0 and so on where the config only counts them."""
    stated = config.get("id2label")
    if not isinstance(stated, Mapping):
        return tuple(f"LABEL_{i}" for i in range(whole(config, "num_labels", 2, least=1)))
    try:
        numbered = {int(number): str(name) for number, name in stated.items()}
    except ValueError:
        raise ExportError(f"config.json's id2label has a key that is no number: {sorted(stated)}") from None
    if sorted(numbered) != list(range(len(numbered))):
        raise ExportError(
            f"config.json's id2label has the numbers {sorted(numbered)}; they must be 0 to {len(numbered) - 1}"
        )
    return tuple(numbered[number] for number in range(len(numbered)))


def pair_labels(checkpoint: Checkpoint, family: Family) -> tuple[str, str]:
    """What the pair head's two logits mean. Where the checkpoint's name or card decides, `checkpoint.assumed` says so."""
    config_name = str(checkpoint.config.get("_name_or_path", ""))
    for where, said in (("name", checkpoint.name), ("_name_or_path", config_name), ("card's title", checkpoint.title)):
        for part, kind in family.pair_of_name.items():
            if part in said.lower():
                first, second = PAIRS[kind]
                reason = f"the checkpoint's {where} says {said!r}, and such models were trained on sentence order"
                checkpoint.assumed["pair_labels"] = f"{first} and {second}: {reason}"
                return first, second
    return PAIRS[family.pair]
