"""/tag: a fine-tuned classifier's tags for a text's tokens, as transformers' TokenClassificationPipeline gives them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks, as_list
from service.tasks.predict import Floats, softmax
from service.tasks.schemas import TagRequest
from service.tasks.tokenizer import EncodedText, EncodeOptions

OPTIONS = EncodeOptions(outputs=frozenset({"tags"}), spans=True)
OUTSIDE = "O"  # the tag of tokens that belong to no entity; left out of the response
Tagged = dict[str, Any]  # a token with its best tag, or a group of them, as in the response


async def tag(tasks: Tasks, request: TagRequest, *, timeout_seconds: float) -> TaskResult:
    """A list of tokens, or of groups of tokens, for one text; a list of lists for several."""
    tasks.require_head("tags")
    grouped, texts = _strategy(request) == "simple", as_list(request.inputs)
    result = await tasks.run(texts, request, OPTIONS, timeout_seconds=timeout_seconds)
    value: list[list[Tagged]] = []
    for text, tokens, row in zip(texts, result.sequences, result.rows, strict=True):
        if value:
            await asyncio.sleep(0)  # a long text takes milliseconds
        tagged = _tag_tokens(tasks, text, tokens, softmax(row["tags"].astype(np.float64)))
        value.append(_group(tasks, tagged) if grouped else [one for one in tagged if one["entity"] != OUTSIDE])
    return result.finish(value if isinstance(request.inputs, list) else value[0])


def _strategy(request: TagRequest) -> str:
    nested = request.parameters and request.parameters.aggregation_strategy
    if request.aggregation_strategy and nested:
        raise Invalid("aggregation_strategy given twice: at the top level and under parameters", code="parameters")
    return request.aggregation_strategy or nested or "none"


def _tag_tokens(tasks: Tasks, text: str, tokens: EncodedText, scores: Floats) -> list[Tagged]:
    """The text's own tokens; `scores` [length, tags]. `index` counts special tokens too."""
    unknown, best = tasks.manifest.special_tokens.get("unk"), scores.argmax(axis=-1).tolist()
    found = []
    for index, (token_id, (start, end)) in enumerate(zip(tokens.ids.tolist(), tokens.spans.tolist(), strict=True)):
        if start >= 0:
            word = text[start:end] if token_id == unknown else tasks.tokenizer.piece(token_id)
            label, score = tasks.manifest.labels[best[index]], float(scores[index, best[index]])
            found.append({"entity": label, "score": score, "index": index, "word": word, "start": start, "end": end})
    return found


def _group(tasks: Tasks, tagged: Sequence[Tagged]) -> list[Tagged]:
    """Neighbours of one entity together; a B- starts a new group."""
    groups: list[list[Tagged]] = []
    for token in tagged:
        same = groups and _entity(token) == _entity(groups[-1][-1])
        if same and not token["entity"].startswith("B-"):
            groups[-1].append(token)
        else:
            groups.append([token])
    return [_merge(tasks, group) for group in groups if _entity(group[0]) != OUTSIDE]


def _entity(token: Tagged) -> str:
    """The tag without its B- or I-."""
    entity: str = token["entity"]
    return entity[2:] if entity.startswith(("B-", "I-")) else entity


def _merge(tasks: Tasks, group: Sequence[Tagged]) -> Tagged:
    entity = group[0]["entity"].split("-", 1)[-1]
    word = tasks.tokenizer.join_pieces([token["word"] for token in group])
    score = float(np.mean([token["score"] for token in group]))
    return {"entity_group": entity, "score": score, "word": word, "start": group[0]["start"], "end": group[-1]["end"]}
