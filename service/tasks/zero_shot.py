"""/predict with `candidate_labels`: how well a text entails "This example is LABEL.", by a classifier of entailment.

As transformers' ZeroShotClassificationPipeline (Yin et al., 2019, Benchmarking Zero-shot Text Classification).
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Invalid, NoSuchHead, TooLarge
from ..tokenization.windows import HypothesesReader
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks
from .inputs import Pair, merge_parameters
from .predict import OPTIONS, Floats, PredictRequest, ZeroShotFields, predict, softmax
from .results import LongList

TEMPLATE = "This example is {}."
UNUSED = ("top_k", "function_to_apply", "raw_scores", "window_scores", "long", "stride")  # they say nothing of labels


def predict_labels(tasks: Tasks, request: PredictRequest) -> Awaitable[Task]:
    """A classifier's labels for a text or a pair, in the format of text-embeddings-inference; or with candidate_labels
    those of the request, as transformers' zero-shot-classification pipeline gives them."""
    if not (_asks_for_labels(request) or _asks_for_labels(request.parameters)):
        return predict(tasks, request)
    return zero_shot(tasks, merge_parameters(request))


async def zero_shot(tasks: Tasks, request: PredictRequest) -> Task:
    """{sequence, labels, scores} for one text, a list of them for several; labels best first.

    Raises NoSuchHead for a classifier without an entailment label, TooLarge for too many pairs of text and label.
    """
    entailment = find_entailment(tasks.manifest.labels)
    labels, texts = _labels(request), _texts(request.inputs)
    if unused := [name for name in UNUSED if getattr(request, name) not in (None, False)]:
        raise Invalid(f"{', '.join(unused)} cannot be combined with candidate_labels", code="parameters")
    _check_pairs(tasks, texts, labels)
    hypotheses = _hypotheses(labels, request.hypothesis_template or TEMPLATE, tasks.tokenizer.max_characters)
    options, tokenizer = tasks.reading(request, OPTIONS), tasks.tokenizer
    ids = await tokenizer.read(hypotheses, options, lambda one: np.array(one.ids, np.int32), add_special_tokens=False)
    tokenizer.check_pairs()
    chunks = partial(tokenizer.chunks, texts, options, tasks.truncation(request), HypothesesReader, hypotheses=ids)

    async def answer(result: TaskResult) -> Any:
        logits = np.concatenate([row["labels"] for row in result.rows]).astype(np.float64)
        of_texts = logits.reshape(len(texts), len(labels), -1)
        scores = entailment_scores(of_texts, entailment, alone=bool(request.multi_label))
        found = LongList([_rank(text, labels, row) async for text, row in in_turns(zip(texts, scores, strict=True))])
        return found if isinstance(request.inputs, list) else found[0]

    return Task(chunks, answer)


def find_entailment(labels: Sequence[str]) -> int:
    """The index of the label that begins with "entail", as the pipeline finds it. Raises NoSuchHead."""
    found = next((index for index, label in enumerate(labels) if label.lower().startswith("entail")), None)
    if found is not None:
        return found
    message = "candidate_labels need a classifier with an entailment label (one that begins with `entail`)"
    raise NoSuchHead(f"{message}; this model has {', '.join(labels)}")


def entailment_scores(logits: Floats, entailment: int, *, alone: bool) -> Floats:
    """[texts, labels] of [texts, labels, classes]: the softmax of entailment over all labels.

    `alone`, and for a single label: of each label over contradiction and entailment. Contradiction is the first class,
    or the last class if entailment is the first.
    """
    if not alone and logits.shape[1] > 1:
        return softmax(logits[..., entailment])
    contradiction = -1 if entailment == 0 else 0
    return softmax(logits[..., [contradiction, entailment]])[..., 1]


def as_elements(value: Any) -> Any:
    """[{label, score}], as hosted endpoints answer their clients, also for a list of a single text.

    For several texts a list of these.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        return [as_elements(one) for one in value]
    return [{"label": label, "score": score} for label, score in zip(value["labels"], value["scores"], strict=True)]


def _asks_for_labels(fields: ZeroShotFields | None) -> bool:
    return fields is not None and any(getattr(fields, name) is not None for name in ZeroShotFields.model_fields)


def _labels(request: PredictRequest) -> list[str]:
    labels = request.candidate_labels
    if labels is None:
        message = "hypothesis_template and multi_label say how candidate_labels are scored: send these too"
        raise Invalid(message, code="candidate_labels")
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    if not labels:
        raise Invalid("candidate_labels is empty: send at least one", code="candidate_labels")
    return labels


def _texts(inputs: str | Pair | Sequence[str | Pair | list[str]]) -> list[str]:
    """Raises Invalid with the index of a pair. A list of two strings is two texts, as in the pipeline."""
    texts = []
    for index, one in enumerate(inputs if isinstance(inputs, list) else [inputs]):
        text = one[0] if isinstance(one, list) and len(one) == 1 else one
        if not isinstance(text, str):
            message = "candidate_labels are scored for texts, this input is a pair: send a text or a list of texts"
            raise Invalid(message, code="pair", index=index)
        texts.append(text)
    return texts


def _check_pairs(tasks: Tasks, texts: Sequence[str], labels: Sequence[str]) -> None:
    tasks.check_count(texts)
    count, most = len(texts) * len(labels), tasks.settings.max_inputs
    if count > most:
        pairs = f"the request has {count} pairs of text and label ({len(texts)} x {len(labels)})"
        raise TooLarge(f"{pairs}; at most {most} are allowed (BERT_MAX_INPUTS): split it")


def _hypotheses(labels: Sequence[str], template: str, most: int) -> list[str]:
    """The template with each label. Raises Invalid for a template without {}, and for more than `most` characters."""
    literals = _parse(template)
    gaps, size = len(literals) - 1, sum(map(len, literals))
    if (total := size * len(labels) + gaps * sum(map(len, labels))) > most:
        message = f"the labels in the hypothesis template have {total} characters"
        limit = f"at most {most} are allowed (BERT_MAX_CHARACTERS)"
        raise Invalid(f"{message}; {limit}: shorten the template or send fewer labels", code="candidate_labels")
    return [label.join(literals) for label in labels]


def _parse(template: str) -> list[str]:
    """The text around each {}. str.format is not used: a template could read attributes and fill the memory."""
    literals = [""]
    try:
        for literal, name, layout, conversion in Formatter().parse(template):
            literals[-1] += literal
            if name is None:
                continue
            if name not in ("", "0") or layout or conversion:
                raise ValueError
            literals.append("")
    except ValueError:
        literals = []
    if len(literals) < 2:
        message = f"hypothesis_template is {template[:100]!r}; it needs {{}} where the label goes, and no other braces"
        raise Invalid(message, code="hypothesis_template")
    return literals


def _rank(text: str, labels: Sequence[str], scores: NDArray[np.float64]) -> dict[str, Any]:
    order = scores.argsort(kind="stable")[::-1].tolist()  # of equal scores the later label first, as the pipeline
    return {"sequence": text, "labels": [labels[i] for i in order], "scores": scores[order].tolist()}
