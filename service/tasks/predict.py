"""Labels of texts and pairs: request and response models, and the scores."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ..errors import Invalid
from ..tokenization.encoding import EncodeOptions, Text
from ..turns import in_turns
from .embed import Combine, asks_for_windows, join_windows, mean, read_texts
from .flow import Task, TaskResult, Tasks
from .inputs import (
    PARAMETERS,
    Body,
    ClientFields,
    FailFastList,
    Pair,
    StringOrList,
    TruncationFields,
    WindowFields,
    as_text,
    merge_parameters,
)
from .results import LongList

OPTIONS = EncodeOptions(outputs=frozenset({"labels"}))
TEXT_OR_PAIR = "an input is a text or a pair, this one has {} texts"
WINDOW_FUNCTIONS: dict[str, Combine] = {"mean": mean, "max": lambda scores, _: np.asarray(scores.max(axis=0))}
ScoreFunction = Literal["softmax", "sigmoid", "none"]
Floats = NDArray[np.float64]


class ZeroShotFields(Body):
    candidate_labels: StringOrList | None = Field(
        None,
        description="score these labels by entailment, as transformers' zero-shot-classification pipeline: a list, or "
        "a text with commas; for a classifier that has an entailment label",
    )
    hypothesis_template: str | None = Field(
        None, description='with candidate_labels: {} is where the label goes (default "This example is {}.")'
    )
    multi_label: bool | None = Field(
        None, description="with candidate_labels: true scores each label alone, false (default) all against each other"
    )


class PredictParameters(TruncationFields, WindowFields, ZeroShotFields):
    top_k: int | None = Field(None, ge=1, description="number of labels, best first (default: all)")
    function_to_apply: ScoreFunction | None = Field(
        None, description="makes scores of logits; null: the checkpoint's own, label_scores in /info"
    )
    window_scores: Literal["mean", "max"] | None = Field(
        None,
        description="with long: a label's score is the mean over the windows (default), each weighted by the tokens "
        "that it adds, or their largest",
    )


class PredictRequest(ClientFields, PredictParameters):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "I like tea."},
                {"inputs": "I like tea.", "candidate_labels": ["drinks", "travel"]},
            ]
        }
    )

    inputs: str | Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=["I like tea."],
        description='a text; ["a", "b"] is one pair, with candidate_labels two texts; [["a"], ["a", "b"]] is a batch '
        "of texts and pairs",
    )
    raw_scores: bool = Field(False, description="return logits instead of probabilities")
    parameters: PredictParameters | None = Field(
        None, description=f"{PARAMETERS}. With it, even if empty, one input is answered with a list of one list"
    )


class Label(BaseModel):
    label: str = Field(examples=["positive"])
    score: float = Field(examples=[0.93])


class ZeroShotLabels(BaseModel):
    """The labels of one text, best first, as transformers' pipeline gives them."""

    sequence: str = Field(description="the text", examples=["I like tea."])
    labels: list[str] = Field(examples=[["drinks", "travel"]])
    scores: list[float] = Field(examples=[[0.93, 0.07]])


ZeroShotResponse = Annotated[ZeroShotLabels | list[ZeroShotLabels], Field(description="with candidate_labels")]
PredictResponse = list[Label] | list[list[Label]] | ZeroShotResponse


async def predict(tasks: Tasks, request: PredictRequest) -> Task:
    """The labels with their scores, best first: a list for one text or pair, a list of lists for a batch.

    With `parameters`, a list of one list for one text or pair, as the Hugging Face API answers its clients.
    """
    texts, single = _texts(request.inputs)
    single = single and request.parameters is None
    request = merge_parameters(request)
    score, combine = _score_function(tasks, request), _window_function(request)
    chunks = await read_texts(tasks, texts, request, OPTIONS)

    async def answer(result: TaskResult) -> Any:
        scores = [score(row["labels"][0].astype(np.float64)) async for row in in_turns(result.rows)]
        scores = await join_windows(result, scores, combine)
        ranked = LongList([_rank(tasks.manifest.labels, one, request.top_k) async for one in in_turns(scores)])
        return ranked[0] if single else ranked

    return Task(chunks, answer)


def _window_function(request: PredictRequest) -> Combine:
    """What makes a text's scores of those of its windows."""
    if not asks_for_windows(request) and request.window_scores is not None:
        message = "window_scores joins the scores of windows, and this request has none: send long: windows too"
        raise Invalid(message, code="parameters")
    return WINDOW_FUNCTIONS[request.window_scores or "mean"]


def _score_function(tasks: Tasks, request: PredictRequest) -> Callable[[Floats], Floats]:
    """Raises Invalid if raw_scores contradicts function_to_apply."""
    if not request.raw_scores:
        return SCORE_FUNCTIONS[request.function_to_apply or tasks.manifest.label_scores]
    if request.function_to_apply not in (None, "none"):
        message = f"raw_scores is true and function_to_apply is {request.function_to_apply}: send one of them"
        raise Invalid(message, code="parameters")
    return SCORE_FUNCTIONS["none"]


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))  # never overflows


SCORE_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {"softmax": softmax, "sigmoid": sigmoid, "none": lambda x: x}


def _texts(inputs: str | Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The texts or pairs, and whether they are a single input. A list of two strings is a pair, as in TEI."""
    if isinstance(inputs, str | Pair):
        return [as_text(inputs, 0, wrong=TEXT_OR_PAIR)], True
    strings = [one for one in inputs if isinstance(one, str)]
    if not inputs or len(strings) < len(inputs):
        return [as_text(one, index, wrong=TEXT_OR_PAIR, alone=True) for index, one in enumerate(inputs)], False
    if len(strings) > 2:
        example = '["a", "b"] is one pair, [["a"], ["b"], ["c"]] are three texts'
        raise Invalid(f"inputs is a list of {len(strings)} strings; {example}", code="pair")
    return [as_text(strings, 0, wrong=TEXT_OR_PAIR, alone=True)], True


def _rank(labels: Sequence[str], scores: Floats, most: int | None) -> list[dict[str, Any]]:
    order = np.argsort(-scores, kind="stable")[:most].tolist()
    return [{"label": labels[i], "score": float(scores[i])} for i in order]
