"""/fill-mask with `joint`: all masks of a text filled together, by a beam search.

In each round every text of the beam fills the mask whose best candidate is the most probable, and the texts with the
highest sums of log-probabilities are kept. All rounds of all inputs are a single request to the queue.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from packbert.model_export.artifact.batch import Row
from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid
from ..tokenization.chunks import Chunks
from ..tokenization.encoding import EncodedText
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks, in_chunks
from .passes import check_cost, name_passes
from .results import LongList

OUTPUTS = frozenset({"top_logits", "top_ids", "log_sum_exp"})
DEFAULT_TOP_K = 5
DEFAULT_BEAM, MAX_BEAM = 10, 64
WAY_OUT = "lower beam, or send fewer or shorter texts"
Filled = tuple[tuple[int, int, float], ...]  # of each mask that is filled, first to last: mask, id, log-probability


@dataclass(slots=True, eq=False)
class Search:
    """The beam of a text."""

    text: EncodedText
    beam: int
    states: list[Filled] = field(default_factory=lambda: [()])  # best first

    @property
    def done(self) -> bool:
        return len(self.states[0]) == len(self.text.masks)

    def passes(self) -> Iterator[EncodedText]:
        """A pass for each partly filled text, which scores all of its open masks."""
        for state in self.states:
            masks = tuple(self.text.masks[mask] for mask in self._open_masks(state))
            yield replace(self.text, ids=self.fill(state), outputs=OUTPUTS, masks=masks, top_k=self.beam)

    def fill(self, state: Filled) -> Ints:
        """[length] the ids of the text with the pieces of `state`."""
        ids = self.text.ids.copy()
        for mask, piece, _ in state:
            ids[self.text.masks[mask]] = piece
        return ids

    def advance(self, rows: Sequence[Row]) -> None:
        """Fills a mask of each partly filled text; `rows` are those of `passes`."""
        choices = [self._most_certain(state, row) for state, row in zip(self.states, rows, strict=True)]
        totals = np.array([logs for _, _, logs in choices]) + [[total(state)] for state in self.states]
        found: dict[frozenset[tuple[int, int]], Filled] = {}
        for candidate in np.argsort(-totals.ravel(), kind="stable").tolist():
            number, rank = divmod(candidate, self.beam)
            mask, ids, logs = choices[number]
            filled = (*self.states[number], (mask, ids[rank], logs[rank]))
            pieces = frozenset((mask, piece) for mask, piece, _ in filled)
            found.setdefault(pieces, filled)  # if two orders fill a text alike, the order with the higher sum
            if len(found) == self.beam:
                break
        self.states = list(found.values())

    def _open_masks(self, state: Filled) -> list[int]:
        filled = {mask for mask, _, _ in state}
        return [mask for mask in range(len(self.text.masks)) if mask not in filled]

    def _most_certain(self, state: Filled, row: Row) -> tuple[int, list[int], list[float]]:
        """The open mask whose best candidate is the most probable; its best ids and their log-probabilities."""
        logs = row["top_logits"][:, : self.beam].astype(np.float64) - row["log_sum_exp"].astype(np.float64)
        best = int(logs[:, 0].argmax())
        ids = row["top_ids"][best, : self.beam].tolist()
        return self._open_masks(state)[best], ids, np.minimum(logs[best], 0.0).tolist()


def total(state: Filled) -> float:
    """The sum of the log-probabilities, rounded alike by each Python: from 3.12 on `sum` rounds once."""
    return reduce(add, [log for _, _, log in state], 0.0)


def choose_beam(tasks: Tasks, beam: int | None, top_k: int | None) -> tuple[int, int]:
    """The width of the beam and the number of candidates. Raises Invalid if either is too large."""
    most = min(MAX_BEAM, tasks.manifest.sizes["vocabulary"])
    for name, value in (("beam", beam), ("top_k", top_k)):
        if value is not None and value > most:
            raise Invalid(f"{name} is {value}; with joint at most {most} is allowed: lower it", code=name)
    if beam is None:
        beam = min(most, max(DEFAULT_BEAM, top_k or 0))
    if top_k is None:
        top_k = min(DEFAULT_TOP_K, beam)
    if top_k > beam:
        message = f"top_k is {top_k}, and a beam of {beam} keeps no more than {beam} candidates"
        raise Invalid(f"{message}: raise beam, or lower top_k", code="top_k")
    return beam, top_k


async def fill_together(tasks: Tasks, texts: Sequence[EncodedText], *, beam: int, top_k: int) -> Task:
    """For each text a list of the `top_k` best ways to fill all of its masks, as `JointCandidate` documents.

    Raises TooLarge if all rounds together could be more than the queue takes at once.
    """
    passes = [1 + beam * (len(text.masks) - 1) for text in texts]
    count, tokens = sum(passes), sum(n * len(text) for n, text in zip(passes, texts, strict=True))
    check_cost(tasks, count, tokens, WAY_OUT)
    searches = [Search(text, beam) for text in texts]

    async def answer(result: TaskResult) -> LongList:
        result.truncated = sum(text.truncated for text in texts)
        return LongList([await _describe(tasks, search, top_k) async for search in in_turns(searches)])

    return Task(partial(_rounds, searches, tokens), answer, locate=partial(name_passes, count))


async def _rounds(searches: Sequence[Search], tokens: int) -> Chunks:
    """The passes of each round, made from the rows of the round before; all have `tokens` tokens at most."""
    while left := [(index, one) for index, one in enumerate(searches) if not one.done]:
        size = sum(len(search.text) * len(search.states) for _, search in left)
        tokens -= size
        rows = None
        async for chunk in in_chunks(((index, one) for index, search in left for one in search.passes()), size):
            chunk.needs_rows = not chunk.left
            chunk.left += tokens
            rows = yield chunk
        given = iter(rows or ())
        async for _, search in in_turns(left):
            search.advance([next(given) for _ in search.states])


async def _describe(tasks: Tasks, search: Search, top_k: int) -> list[dict[str, Any]]:
    """The best filled texts as in the response."""
    states, runs, pad = search.states[:top_k], _neighbours(search.text.masks), tasks.manifest.special_tokens.get("pad")
    filled = [[token_id for token_id in search.fill(state).tolist() if token_id != pad] for state in states]
    sequences = await tasks.tokenizer.decode(filled, skip_special_tokens=True)
    in_text_order = [sorted(state) for state in states]
    parts = [[masks[mask][1] for mask in run] for masks in in_text_order for run in runs]
    texts = await tasks.tokenizer.decode(parts, skip_special_tokens=False)
    return [
        {
            "score": math.exp(total(state)),
            "log_probability": total(state),
            "tokens": [piece for _, piece, _ in masks],
            "pieces": [tasks.tokenizer.piece(piece) for _, piece, _ in masks],
            "log_probabilities": [log for _, _, log in masks],
            "order": [mask for mask, _, _ in state],
            "texts": texts[n * len(runs) : (n + 1) * len(runs)],
            "sequence": sequence,
        }
        for n, (state, masks, sequence) in enumerate(zip(states, in_text_order, sequences, strict=True))
    ]


def _neighbours(positions: Sequence[int]) -> list[list[int]]:
    """The masks in runs without another token between them."""
    gaps = np.flatnonzero(np.diff(positions) > 1) + 1
    return [run.tolist() for run in np.split(np.arange(len(positions)), gaps)]
