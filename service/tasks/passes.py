"""Tasks that run a text several times: what they may cost, and targets of several pieces."""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid, ServiceError, TooMuchForDeadline
from ..tokenization.encoding import EncodedText
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks, in_chunks

WAY_OUT = "send shorter texts, fewer at once, or a longer x-request-timeout-ms"
FEWER_TARGETS = "send fewer or shorter targets, or fewer texts at once"
OUTPUTS = frozenset({"target_logits", "log_sum_exp"})
Ids = tuple[int, ...]
Step = tuple[int, Ids]  # the number of pieces of a target, and those of them that are filled in
Steps = dict[Step, Ids]  # with the pieces that are scored next
SINGLE: Step = (1, ())  # that of all targets of a single piece
Scores = dict[tuple[int, Ids], float]  # index of the mask, ids of a target -> its log-probability


def check_cost(tasks: Tasks, passes: int, tokens: int, way_out: str) -> None:
    """Raises TooLarge if passes with so many `tokens` in all are more than the queue takes at once."""
    cost = f"the request takes {passes} passes of the model with {tokens} tokens in all"
    tasks.check_tokens(tokens, cost=cost, done="allowed", way_out=way_out)


def name_passes(count: int, error: ServiceError) -> None:
    """An error that the request takes too long says how many passes it takes."""
    if isinstance(error, TooMuchForDeadline):
        cost, _, _ = error.message.partition(": ")
        error.message = f"{cost}; they are {count} passes of the model: {WAY_OUT}"


def steps_of(targets: Sequence[Ids]) -> Steps:
    """The next pieces to score in each step, whatever the text."""
    steps: dict[Step, dict[int, None]] = {}
    for ids in targets:
        for done in range(len(ids)):
            steps.setdefault((len(ids), ids[:done]), {})[ids[done]] = None
    return {step: tuple(pieces) for step, pieces in steps.items()}


def cost_of(steps: Steps, text: EncodedText) -> tuple[int, int]:
    """The number of passes of a text, and their tokens."""
    passes = [(1 if pieces == 1 else len(text.masks), len(text) + pieces - 1) for pieces, _ in steps]
    return sum(count for count, _ in passes), sum(count * tokens for count, tokens in passes)


async def score_words(
    tasks: Tasks,
    texts: Sequence[EncodedText],
    targets: Sequence[Ids],
    describe: Callable[[EncodedText, Scores], Awaitable[Any]],
) -> Task:
    """What `describe` makes of each text and of the log-probabilities of the targets at its masks, in all passes.

    Raises Invalid with the text's index if a target does not fit the model's limit, TooLarge for too many passes.
    """
    steps, longest = steps_of(targets), max(map(len, targets))
    for index, text in enumerate(texts):
        check_fit(tasks, len(text), longest, index)
    costs = [cost_of(steps, text) async for text in in_turns(texts)]
    count, tokens = sum(passes for passes, _ in costs), sum(each for _, each in costs)
    check_cost(tasks, count, tokens, FEWER_TARGETS)
    mask_id = tasks.tokenizer.mask_id

    async def answer(result: TaskResult) -> list[Any]:
        result.truncated, described, first = sum(text.truncated for text in texts), list[Any](), 0
        async for text, (passed, _) in in_turns(zip(texts, costs, strict=True)):
            scores = await _scores(targets, steps, len(text.masks), result.rows[first : first + passed])
            described.append(await describe(text, scores))
            first += passed
        return described

    passes = ((index, one) for index, text in enumerate(texts) for one in _passes(steps, text, mask_id))
    return Task(partial(in_chunks, passes, tokens), answer, locate=partial(name_passes, count))


def check_fit(tasks: Tasks, length: int, pieces: int, index: int) -> None:
    """Raises Invalid if a text with a mask replaced by `pieces` masks is longer than the model takes."""
    limit = tasks.manifest.max_tokens
    if (size := length + pieces - 1) > limit:
        message = f"input has {length} tokens, and {size} with a mask for each of a target's {pieces} pieces"
        way_out = "shorten it, or leave that target out"
        raise Invalid(f"{message}; this model takes at most {limit}: {way_out}", code="too_long", index=index)


def word_score(ids: Ids, log_probability: float) -> float:
    """The score of a target, comparable between targets of different numbers of pieces."""
    return math.exp(log_probability / len(ids))


def _places(steps: Steps, masks: int) -> Iterator[tuple[Step, range]]:
    """The step of each pass of a text, and which of its masks it scores: all with targets of a single piece."""
    for mask in range(masks):
        for step in steps:
            if step != SINGLE:
                yield step, range(mask, mask + 1)
            elif mask == 0:
                yield step, range(masks)


def _passes(steps: Steps, text: EncodedText, mask_id: int) -> Iterator[EncodedText]:
    for (pieces, done), scored in _places(steps, len(text.masks)):
        mask = text.masks[scored[0]]
        filled = np.array([*done, *[mask_id] * (pieces - len(done))], np.int32)
        ids = np.concatenate([text.ids[:mask], filled, text.ids[mask + 1 :]])
        types = np.insert(text.types, mask, np.full(pieces - 1, text.types[mask]))
        masks = tuple(text.masks[n] + len(done) for n in scored)
        yield replace(text, ids=ids, types=types, outputs=OUTPUTS, masks=masks, targets=steps[pieces, done])


async def _scores(targets: Sequence[Ids], steps: Steps, masks: int, rows: Sequence[Row]) -> Scores:
    """From the rows of a text's passes."""
    found, scores = dict[tuple[int, Step, int], float](), Scores()
    async for (step, scored), row in in_turns(zip(_places(steps, masks), rows, strict=True)):
        for mask, logs in zip(scored, log_probabilities(row), strict=True):
            found |= {(mask, step, piece): log for piece, log in zip(steps[step], logs, strict=True)}
    async for mask in in_turns(range(masks)):
        for ids in targets:
            scores[mask, ids] = sum(found[mask, (len(ids), ids[:n]), piece] for n, piece in enumerate(ids))
    return scores


def log_probabilities(row: Row) -> list[list[float]]:
    """[masks, targets] over the whole vocabulary."""
    sums = row["log_sum_exp"].astype(np.float64)  # [masks, 1]
    logits = row["target_logits"].astype(np.float64).reshape(len(sums), -1)
    found: list[list[float]] = np.minimum(logits - sums, 0.0).tolist()
    return found
