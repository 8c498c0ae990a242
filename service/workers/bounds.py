"""What a model accepts of its tokenizer, checked before a request is sent: a fault then concerns no other request."""

from collections.abc import Sequence

import numpy as np

from model_export.artifact.batch import Tokens
from model_export.artifact.manifest import ModelBounds
from service.workers.messages import SubmitBatch


def keeps_bounds(message: SubmitBatch, bounds: ModelBounds) -> bool:
    """Whether all ids, types, lengths and targets of a message that this process encoded are within the bounds."""
    lengths = np.frombuffer(message.lengths, "<u4") - 1  # of 0 the highest number
    if _highest(message.token_ids) >= bounds.vocabulary or _highest(message.type_ids) >= max(1, bounds.segments):
        return False
    for spec in message.specs:
        if spec.targets and _highest(spec.targets) >= bounds.vocabulary:
            return False
    return bool(np.maximum.reduce(lengths) < bounds.max_tokens)


def find_fault(sequences: Sequence[Tokens], bounds: ModelBounds) -> tuple[int, str] | None:
    """The index of the first sequence that leaves the bounds, and how; None where all keep them."""
    limits = {"token id": bounds.vocabulary, "type id": max(1, bounds.segments), "target id": bounds.vocabulary}
    for index, one in enumerate(sequences):
        if not 0 < len(one) <= bounds.max_tokens:
            return index, f"the input has {len(one)} tokens; this model takes 1 to {bounds.max_tokens}"
        parts: tuple[Sequence[int], ...] = (one.ids.tolist(), one.types.tolist(), one.targets)
        for (name, limit), values in zip(limits.items(), parts, strict=True):
            wrong = [value for value in values if not 0 <= value < limit]
            if wrong:
                remedy = "its tokenizer.json does not belong to its weights; export the checkpoint again"
                return index, f"the tokenizer gave the {name} {wrong[0]}; this model has 0 to {limit - 1}: {remedy}"
    return None


def _highest(numbers: memoryview) -> int:
    """Of int32 read as unsigned: a negative number is higher than any limit."""
    return int(np.maximum.reduce(np.frombuffer(numbers, "<u4")))
