"""/nsp: whether the second text of a pair follows the first."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import NspRequest, Pair
from service.tokenization.encoding import EncodeOptions, Text
from service.turns import in_turns

OPTIONS = EncodeOptions(outputs=frozenset({"pair"}))


async def nsp(tasks: Tasks, request: NspRequest, *, timeout_seconds: float) -> TaskResult:
    """The softmax of the pair head's two logits, under the labels that the head was trained on."""
    tasks.require_head("pair")
    pairs, single = _pairs(request.inputs)
    result = await tasks.run(pairs, request, OPTIONS, timeout_seconds=timeout_seconds)
    scores = [_score(row["pair"][0], tasks.manifest.pair_labels) async for row in in_turns(result.rows)]
    return result.finish(scores[0] if single else scores)


def _pairs(inputs: Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The pairs, and whether they are a single input. A list of two strings is one pair, as in /predict."""
    if isinstance(inputs, Pair):
        return [_pair(inputs, 0)], True
    strings = [one for one in inputs if isinstance(one, str)]
    if not strings:
        return [_pair(one, index) for index, one in enumerate(inputs)], False
    if len(strings) == len(inputs) == 2:
        return [_pair(strings, 0)], True
    example = '["a", "b"] is one pair, [["a", "b"], ["c", "d"]] are two pairs'
    raise Invalid(f"inputs is a list of {len(inputs)} with {len(strings)} single strings; {example}", code="pair")


def _pair(item: str | Pair | list[str], index: int) -> Text:
    if isinstance(item, Pair):
        return item.text, item.text_pair
    if len(item) != 2:
        raise Invalid(f"a pair has two texts, this one has {len(item)}", code="pair", index=index)
    return item[0], item[1]


def _score(logits: NDArray[np.generic], labels: Sequence[str]) -> dict[str, Any]:
    first, second = labels
    difference = float(logits[1]) - float(logits[0])
    probability = 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0  # exp overflows from 710 on
    return {"label": first if probability >= 0.5 else second, first: probability, second: 1.0 - probability}
