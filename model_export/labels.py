"""The names of the classifier's and the pair head's logits, and how a classifier's logits become scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .architecture import int_setting
from .checkpoint import Checkpoint, NamedWeights
from .errors import ExportError
from .facts import read_fact
from .families import Family

TASKS = {  # end of a class name -> our output
    "ForSequenceClassification": "labels",
    "ForTokenClassification": "tags",
    "ForMultipleChoice": "choices",
    "ForQuestionAnswering": "spans",  # only if its head is named as a classifier
}
SUMMARY = {  # what ELECTRA's multiple-choice head reads, by the config's keys; also transformers' defaults
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
}
PAIR_LABELS = {"is_next": ("is_next", "not_next"), "order": ("in_order", "swapped")}  # by training objective
RELEVANCE_SCORES = {"Sigmoid": "sigmoid", "Identity": "none"}  # by class of torch.nn
SCORE_FUNCTIONS = {  # by problem_type, as transformers' pipelines do it
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    output: str  # "labels" (of a text), "tags" (of each token), "choices" (of a choice), "spans"; "": no classifier
    names: tuple[str, ...]  # of the logits, in order; none of "choices"
    scores: str  # how a text's logits become scores: "softmax", "sigmoid", "none" (a regression)


def classifier_of(config: Mapping[str, Any], parts: NamedWeights) -> Classifier:
    """The checkpoint's classifier. Raises ExportError if config.json does not define it."""
    if not (parts.has("labels") or parts.has("tags")):
        return Classifier(output="", names=(), scores="none")
    stated = [end for end, output in TASKS.items() if output == parts.head] or config.get("architectures")
    classes = [str(name) for name in stated] if isinstance(stated, list) else []
    outputs = {output for name in classes for end, output in TASKS.items() if name.endswith(end)}
    if len(outputs) != 1:
        expected = f"it must name one class that ends in {' or '.join(TASKS)}; or say with --head labels or --head tags"
        found = f"config.json's architectures is {classes or 'missing'}"
        raise ExportError(f"the checkpoint has a classifier, but {found}: {expected} what it classifies")
    if outputs <= {"choices", "spans"}:
        _check_summary({**parts.family.defaults, **config})
        return Classifier(output=outputs.pop(), names=(), scores="none")
    names = _label_names(config, parts.rows("labels" if outputs == {"labels"} else "tags"))
    problem = config.get("problem_type")
    if problem is not None and str(problem) not in SCORE_FUNCTIONS:
        supported = ", ".join(sorted(SCORE_FUNCTIONS))
        raise ExportError(f"config.json sets problem_type to {problem!r}; supported are {supported}")
    scores = SCORE_FUNCTIONS[problem or "single_label_classification"]
    if scores == "softmax" and len(names) == 1:
        scores = "sigmoid"
    return Classifier(output=outputs.pop(), names=names, scores=scores)


def _check_summary(config: Mapping[str, Any]) -> None:
    """Raises ExportError if ELECTRA's multiple-choice head reads another vector than that of [CLS]."""
    for key, supported in SUMMARY.items():
        if (found := config.get(key, supported)) != supported:
            only = f"of a multiple-choice head only {supported!r} is supported"
            raise ExportError(f"config.json sets {key} to {found!r}; {only}")


def _label_names(config: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The values of id2label by number; LABEL_0 and so on without them, as many as num_labels or the head's `rows`."""
    stated = config.get("id2label")
    if not isinstance(stated, Mapping):
        return tuple(f"LABEL_{i}" for i in range(int_setting(config, "num_labels", rows, least=1)))
    try:
        numbered = {int(number): str(name) for number, name in stated.items()}
    except ValueError:
        numbered = {}
    if sorted(numbered) != list(range(len(stated))):
        expected = f"they must be 0 to {len(stated) - 1}: number the labels as the rows of the classifier's weight"
        raise ExportError(f"config.json's id2label has the numbers {', '.join(map(str, stated))}; {expected}")
    return tuple(numbered[number] for number in range(len(numbered)))


def relevance_scores(checkpoint: Checkpoint) -> str:
    """How a CrossEncoder of sentence-transformers makes a score of a logit: "sigmoid", its default, or "none".

    The files name a class of torch; `assumed` reports a class that is not computed.
    """
    stated = str(read_fact("activation_fn", checkpoint.files, checkpoint.assumed) or "torch.nn.Sigmoid")
    name = stated.rsplit(".", 1)[-1] if stated.startswith("torch.") else ""
    if name not in RELEVANCE_SCORES:
        checkpoint.assumed["activation_fn"] = f"Sigmoid: the checkpoint states {stated}, which is not computed"
    return RELEVANCE_SCORES.get(name, "sigmoid")


def pair_labels(checkpoint: Checkpoint, family: Family) -> tuple[str, str]:
    """The names of the pair head's two logits. If the checkpoint's name or card decides, `assumed` reports it."""
    config_name = str(checkpoint.config.get("_name_or_path", ""))
    for place, text in (("name", checkpoint.name), ("_name_or_path", config_name), ("card's title", checkpoint.title)):
        for part, objective in family.pair_of_name.items():
            if part in text.lower():
                first, second = PAIR_LABELS[objective]
                reason = f"the checkpoint's {place} is {text!r}, and such models were trained on sentence order"
                checkpoint.assumed["pair_labels"] = f"{first} and {second}: {reason}"
                return first, second
    return PAIR_LABELS[family.pair]
