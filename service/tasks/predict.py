"""The tasks of fine-tuned models: a label for a text or a pair (text-embeddings-inference's /predict), a tag for every token (Hugging Face's)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Tokens
from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks
from service.tasks.schemas import Pair, PredictRequest, TagRequest
from service.tasks.tokenizer import Encoded, Text

OUTSIDE = "O"  # the tag of tokens that are part of nothing; left out of the answer
Floats = NDArray[np.float64]


async def predict(tasks: Tasks, request: PredictRequest, *, timeout_seconds: float) -> TaskResult:
    """Every label with its score, best first; one list for one text or pair, a list of them for a batch."""
    tasks.require_head("labels")
    texts, alone = _texts(request.inputs)
    tasks.count(texts)
    encoded, seconds = await tasks.encode(texts, tasks.truncation(request.truncate, request.truncation_direction))
    work = [Tokens(ids=e.ids, types=e.types, outputs=frozenset({"labels"})) for e in encoded]
    ran = await tasks.run(encoded, work, seconds, timeout_seconds)
    started = time.perf_counter()
    how = SCORES["none" if request.raw_scores else tasks.manifest.label_scores]
    results = [_ranked(tasks.manifest.labels, how(row["labels"][0].astype(np.float64))) for row in ran.answer.rows]
    return ran.done(results[0] if alone else results, started)


async def tag(tasks: Tasks, request: TagRequest, *, timeout_seconds: float) -> TaskResult:
    """As transformers' TokenClassificationPipeline: a list of tokens or of groups for a text, a list of lists for several."""
    tasks.require_head("tags")
    grouped = _strategy(request) == "simple"
    texts = tasks.texts(request.inputs)
    encoded, seconds = await tasks.encode(
        texts, tasks.truncation(request.truncate, request.truncation_direction), spans=True
    )
    work = [Tokens(ids=e.ids, types=e.types, outputs=frozenset({"tags"})) for e in encoded]
    ran = await tasks.run(encoded, work, seconds, timeout_seconds)
    started = time.perf_counter()
    results: list[list[dict[str, Any]]] = []
    for text, one, row in zip(texts, encoded, ran.answer.rows, strict=True):
        if results:
            await asyncio.sleep(0)  # a long text takes milliseconds
        tagged = _tagged(tasks, str(text), one, softmax(row["tags"].astype(np.float64)))
        results.append(
            _groups(tasks, tagged) if grouped else [token.shown() for token in tagged if token.tag != OUTSIDE]
        )
    return ran.done(results if isinstance(request.inputs, list) else results[0], started)


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))  # never overflows


SCORES: dict[str, Callable[[Floats], Floats]] = {"softmax": softmax, "sigmoid": sigmoid, "none": lambda logits: logits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    tag: str
    score: float
    index: int  # of the token, special tokens counted
    word: str
    start: int  # character of the text
    end: int

    def shown(self) -> dict[str, Any]:
        return {
            "entity": self.tag,
            "score": self.score,
            "index": self.index,
            "word": self.word,
            "start": self.start,
            "end": self.end,
        }

    @property
    def kind(self) -> str:
        """The tag without its B- or I-."""
        return self.tag[2:] if self.tag.startswith(("B-", "I-")) else self.tag


def _texts(inputs: str | Pair | Sequence[str | Pair | list[str]]) -> tuple[list[Text], bool]:
    """The texts or pairs, and whether one answer is wanted and not a list. A list of two strings is one pair, as in TEI."""
    if isinstance(inputs, str | Pair):
        return [_text(inputs, 0)], True
    strings = [one for one in inputs if isinstance(one, str)]
    if not inputs or len(strings) < len(inputs):
        return [_text(one, index) for index, one in enumerate(inputs)], False
    if len(strings) > 2:
        raise Invalid(
            f'inputs is a list of {len(strings)} strings; ["a", "b"] is one pair, [["a"], ["b"], ["c"]] are three texts',
            code="pair",
        )
    return [_text(strings, 0)], True


def _text(one: str | Pair | list[str], index: int) -> Text:
    if isinstance(one, str):
        return one
    if isinstance(one, Pair):
        return one.text, one.text_pair
    if len(one) == 1:
        return one[0]
    if len(one) == 2:
        return one[0], one[1]
    raise Invalid(f"an input is a text or a pair, this one has {len(one)} texts", code="pair", index=index)


def _ranked(labels: Sequence[str], scores: Floats) -> list[dict[str, Any]]:
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"label": labels[i], "score": float(scores[i])} for i in order]


def _strategy(request: TagRequest) -> str:
    stated = [
        one
        for one in (request.aggregation_strategy, request.parameters and request.parameters.aggregation_strategy)
        if one
    ]
    if len(stated) > 1:
        raise Invalid(
            "aggregation_strategy stands both at the top level and under parameters: send it once", code="parameters"
        )
    return stated[0] if stated else "none"


def _tagged(tasks: Tasks, text: str, encoded: Encoded, scores: Floats) -> list[Tagged]:
    """The text's own tokens with their best tags; `scores` [length, tags]."""
    unknown, best = tasks.manifest.special_tokens.get("unk"), scores.argmax(axis=-1).tolist()
    found = []
    for index, (number, (start, end)) in enumerate(zip(encoded.ids.tolist(), encoded.spans.tolist(), strict=True)):
        if start >= 0:
            word = text[start:end] if number == unknown else tasks.tokenizer.piece(number)
            label, score = tasks.manifest.labels[best[index]], float(scores[index, best[index]])
            found.append(Tagged(tag=label, score=score, index=index, word=word, start=start, end=end))
    return found


def _groups(tasks: Tasks, tagged: Sequence[Tagged]) -> list[dict[str, Any]]:
    """Neighbours of one kind together; a B- begins a new group."""
    groups: list[list[Tagged]] = []
    for token in tagged:
        if groups and token.kind == groups[-1][-1].kind and not token.tag.startswith("B-"):
            groups[-1].append(token)
        else:
            groups.append([token])
    return [_group(tasks, group) for group in groups if group[0].kind != OUTSIDE]


def _group(tasks: Tasks, group: Sequence[Tagged]) -> dict[str, Any]:
    kind = group[0].tag.split("-", 1)[-1]
    word = tasks.tokenizer.joined([token.word for token in group])
    score = float(np.mean([token.score for token in group]))
    return {"entity_group": kind, "score": score, "word": word, "start": group[0].start, "end": group[-1].end}
