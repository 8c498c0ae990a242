"""/fill-mask with targets of several pieces: a mask for each piece, scored from left to right.

A target of n pieces takes the place of a mask with n masks. Its first piece is scored there, then the second with the
first filled in, and so on: log p(target) is the sum of the pieces' log-probabilities. Other masks of the text stay
masks. A sum over more pieces is smaller, so candidates are ranked by `score`, the geometric mean of the pieces'
probabilities: exp(log p / n), which is the plain probability of a target of one piece.

All passes are known before the model runs, so they are one request. Targets that begin with the same pieces, and have
as many, share passes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_export.artifact.batch import Row
from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks
from service.tasks.masks.passes import check_cost, run_passes
from service.tokenization.encoding import NO_SPANS, EncodedText
from service.turns import in_turns

OUTPUTS = frozenset({"target_logits", "log_sum_exp"})
WAY_OUT = "send fewer or shorter targets, or fewer texts at once"
Ids = tuple[int, ...]
Step = tuple[int, Ids]  # the number of pieces of a target, and those of them that are filled in
Scores = dict[tuple[int, Ids], float]  # index of the mask, ids of a target -> its log-probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The passes of targets at one mask, whatever the text."""

    targets: Sequence[Ids]
    single: Ids  # the targets of one piece
    steps: Mapping[Step, Ids]  # of the others: the next pieces to score

    @staticmethod
    def of(targets: Sequence[Ids]) -> "Plan":
        steps: dict[Step, dict[int, None]] = {}
        for ids in targets:
            for done in range(len(ids)) if len(ids) > 1 else ():
                steps.setdefault((len(ids), ids[:done]), {})[ids[done]] = None
        single = tuple(ids[0] for ids in targets if len(ids) == 1)
        return Plan(targets=targets, single=single, steps={step: tuple(pieces) for step, pieces in steps.items()})

    def cost(self, text: EncodedText) -> tuple[int, int]:
        """The number of passes of a text, and their tokens."""
        own = len(text) * bool(self.single)
        tokens = sum(len(text) + pieces - 1 for pieces, _ in self.steps)
        return bool(self.single) + len(text.masks) * len(self.steps), own + len(text.masks) * tokens


async def score_words(
    tasks: Tasks, texts: Sequence[EncodedText], targets: Sequence[Ids], *, timeout_seconds: float
) -> tuple[TaskResult, list[Scores]]:
    """The log-probability of each target at each mask of each text; the result has the rows of all passes.

    Raises Invalid with the text's index where a target does not fit the model's limit, TooLarge for too many passes.
    """
    plan, longest = Plan.of(targets), max(map(len, targets))
    for index, text in enumerate(texts):
        check_fit(tasks, len(text), longest, index)
    costs = [plan.cost(text) async for text in in_turns(texts)]
    count, tokens = sum(passes for passes, _ in costs), sum(each for _, each in costs)
    check_cost(tasks, count, tokens, WAY_OUT)
    mask_id = tasks.tokenizer.mask_id
    passes = ((index, one) for index, text in enumerate(texts) for one in _passes(plan, text, mask_id))
    result = await run_passes(tasks, passes, count=count, tokens=tokens, timeout_seconds=timeout_seconds)
    result.truncated = sum(text.truncated for text in texts)
    scores, first = [], 0
    async for text, (passed, _) in in_turns(zip(texts, costs, strict=True)):
        scores.append(await _scores(plan, len(text.masks), result.rows[first : first + passed]))
        first += passed
    return result, scores


def check_fit(tasks: Tasks, length: int, pieces: int, index: int) -> None:
    """Raises Invalid where a text with one mask replaced by `pieces` masks is longer than the model takes."""
    limit = tasks.manifest.max_tokens
    if (size := length + pieces - 1) > limit:
        message = f"input has {length} tokens, and {size} with a mask for each of a target's {pieces} pieces"
        way_out = "shorten it, or leave that target out"
        raise Invalid(f"{message}; this model takes at most {limit}: {way_out}", code="too_long", index=index)


def describe_word(tasks: Tasks, ids: Ids, log_probability: float) -> dict[str, Any]:
    """What a candidate has where a target of its request has several pieces."""
    return {
        "tokens": list(ids),
        "pieces": [tasks.tokenizer.piece(token_id) for token_id in ids],
        "log_probability": log_probability,
        "log_probability_per_piece": log_probability / len(ids),
    }


def word_score(ids: Ids, log_probability: float) -> float:
    """Makes targets of one and of several pieces comparable."""
    return math.exp(log_probability / len(ids))


def _passes(plan: Plan, text: EncodedText, mask_id: int) -> Iterator[EncodedText]:
    """The text as it is for targets of one piece, then the steps of the others at each mask."""
    if plan.single:
        yield _pass(text, text.ids, text.types, text.masks, plan.single)
    for mask in text.masks:
        for (pieces, done), targets in plan.steps.items():
            filled = np.array([*done, *[mask_id] * (pieces - len(done))], np.int32)
            ids = np.concatenate([text.ids[:mask], filled, text.ids[mask + 1 :]])
            types = np.insert(text.types, mask, np.full(pieces - 1, text.types[mask]))
            yield _pass(text, ids, types, (mask + len(done),), targets)


def _pass(text: EncodedText, ids: Any, types: Any, masks: Ids, targets: Ids) -> EncodedText:
    return EncodedText(
        ids=ids,
        types=types,
        outputs=OUTPUTS,
        masks=masks,
        targets=targets,
        truncated=text.truncated,
        empty=False,
        spans=NO_SPANS,
    )


async def _scores(plan: Plan, masks: int, rows: Sequence[Row]) -> Scores:
    """From the rows of one text's passes, in the order of `_passes`."""
    remaining, scores = iter(rows), Scores()
    if plan.single:
        row = next(remaining)
        for mask, logs in enumerate(_log_probabilities(row)):
            scores |= {(mask, (token_id,)): log for token_id, log in zip(plan.single, logs, strict=True)}
    async for mask in in_turns(range(masks)):
        steps: dict[tuple[Step, int], float] = {}
        for (step, targets), row in zip(plan.steps.items(), remaining, strict=False):
            (logs,) = _log_probabilities(row)
            steps |= {(step, token_id): log for token_id, log in zip(targets, logs, strict=True)}
        for ids in plan.targets:
            if len(ids) > 1:
                scores[mask, ids] = sum(steps[(len(ids), ids[:n]), token_id] for n, token_id in enumerate(ids))
    return scores


def _log_probabilities(row: Row) -> list[list[float]]:
    """[masks, targets]"""
    sums = row["log_sum_exp"].astype(np.float64)  # [masks, 1]
    logits = row["target_logits"].astype(np.float64).reshape(len(sums), -1)
    found: list[list[float]] = np.minimum(logits - sums, 0.0).tolist()
    return found
