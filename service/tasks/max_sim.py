"""MaxSim (Khattab and Zaharia 2020): each vector of a query counts with its largest product in a document."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Row

from ..errors import TooLarge
from ..tokenization.chunks import Chunks, each
from ..tokenization.encoding import EncodedText, EncodeOptions
from .embed import locate_behind, prepend_prompt
from .flow import Task, TaskResult, Tasks
from .inputs import TruncationFields, VectorFields

MAX_HELD = 8_000_000  # numbers of vectors that wait for their scores, and of the queries' vectors: 32 MB
CHARACTERS_PER_TOKEN = 4  # of English


def options_of(tasks: Tasks, side: str) -> EncodeOptions:
    """Of texts that are read as a query or as a document."""
    return EncodeOptions(outputs=frozenset({"multi"}), side=tasks.manifest.sides[side])


def own_vectors(tasks: Tasks, side: str, tokens: EncodedText, row: Row) -> NDArray[Any]:
    """[vectors, width] of a text: of its tokens that have a vector."""
    return row["multi"][~np.isin(tokens.ids, tasks.manifest.sides[side].skipped)]


async def score_by_tokens(
    tasks: Tasks, queries: Sequence[str], documents: Sequence[str], request: TruncationFields
) -> Task:
    """[documents] float64: the score of each document for the query at its place, or for the only query.

    The index of an error is that of a document; an error of a query has none.
    """
    scoring = _Scoring(tasks, queries, documents, request)
    return Task(scoring.chunks, scoring.answer, locate=partial(locate_behind, "query", len(queries)))


@dataclass(slots=True, eq=False)
class _Scoring:
    """The queries and then the documents of a request, whose vectors are let go of as they are scored."""

    tasks: Tasks
    queries: Sequence[str]
    documents: Sequence[str]
    request: TruncationFields
    scores: list[float] = field(default_factory=list)
    _vectors: list[NDArray[Any]] = field(default_factory=list)  # of each query

    async def answer(self, result: TaskResult) -> NDArray[np.float64]:
        result.compared = ()
        return np.array(self.scores)

    async def chunks(self) -> Chunks:
        """Raises TooLarge for too many queries."""
        tasks, texts, count = self.tasks, [*self.queries, *self.documents], len(self.queries)
        tasks.check_count(texts, beside=count)
        most, expected = MAX_HELD // int(tasks.manifest.outputs["multi"].shape[-1]), sum(map(len, self.documents))
        waiting, held = list[tuple[str, EncodedText]](), 0
        for side, first, end in (("query", 0, count), ("document", count, len(texts))):
            read, _ = prepend_prompt(tasks, texts[:end], VectorFields(prompt_name=side))
            options = tasks.reading(self.request, options_of(tasks, side))
            made = tasks.tokenizer.chunks(read, options, tasks.truncation(self.request), first=first)
            async for chunk in each(made):
                waiting += [(side, one) for one in chunk.work]
                held += chunk.tokens
                if side == "query":
                    chunk.left += max(1, expected // CHARACTERS_PER_TOKEN)
                    if held > most:
                        raise TooLarge(f"the queries have more than {most} tokens in all: split the request")
                chunk.needs_rows = held > most or not chunk.left
                if (rows := (yield chunk)) is not None:
                    await asyncio.to_thread(self._add, waiting, rows)
                    waiting, held = [], 0

    def _add(self, texts: Sequence[tuple[str, EncodedText]], rows: Sequence[Row]) -> None:
        """Keeps the vectors of queries, and scores documents by them."""
        averages = self.tasks.manifest.sides["query"].averages
        for (side, tokens), row in zip(texts, rows, strict=True):
            vectors = own_vectors(self.tasks, side, tokens, row)
            if side == "query":
                self._vectors.append(vectors)
                continue
            query = self._vectors[len(self.scores) % len(self._vectors)]
            best = (query @ vectors.T).max(axis=1).astype(np.float64)
            self.scores.append(float(best.mean() if averages else best.sum()))
