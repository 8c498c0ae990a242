"""MaxSim (Khattab and Zaharia 2020): each vector of a query counts with its largest product in a document."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Row

from ..errors import TooLarge
from ..tokenization.chunks import Chunks, TextChunk, each
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
    count, width = len(queries), int(tasks.manifest.outputs["multi"].shape[-1])
    query_vectors, scores = list[NDArray[Any]](), list[float]()

    def add(texts: Sequence[tuple[str, EncodedText]], rows: list[Row]) -> None:
        """Keeps the vectors of queries, scores documents by them, and lets go of the documents' vectors."""
        for (side, tokens), row in zip(texts, rows, strict=True):
            vectors = own_vectors(tasks, side, tokens, row)
            if side == "query":
                query_vectors.append(vectors)
                continue
            best = (query_vectors[len(scores) % count] @ vectors.T).max(axis=1).astype(np.float64)
            scores.append(float(best.mean() if tasks.manifest.sides["query"].averages else best.sum()))
        rows.clear()  # the callers and the thread may hold the list while the next chunks run

    async def chunks() -> Chunks:
        """The queries and then the documents. Raises TooLarge for too many queries."""
        most, expected = MAX_HELD // width, sum(map(len, documents))
        waiting, held = list[tuple[str, EncodedText]](), 0
        async for side, chunk in _read_sides(tasks, queries, documents, request):
            waiting += [(side, one) for one in chunk.work]
            held += chunk.tokens
            if side == "query":
                chunk.left += max(1, expected // CHARACTERS_PER_TOKEN)
                if held > most:
                    raise TooLarge(f"the queries have more than {most} tokens in all: split the request")
            chunk.needs_rows = held > most or not chunk.left
            if (rows := (yield chunk)) is not None:
                await asyncio.to_thread(add, waiting, rows)
                waiting, held = [], 0

    async def answer(result: TaskResult) -> NDArray[np.float64]:
        result.compared = ()
        return np.array(scores)

    return Task(chunks, answer, locate=partial(locate_behind, "query", count))


async def _read_sides(
    tasks: Tasks, queries: Sequence[str], documents: Sequence[str], request: TruncationFields
) -> AsyncIterator[tuple[str, TextChunk]]:
    """The chunks of the queries and then of the documents, each with its side."""
    texts, count = [*queries, *documents], len(queries)
    tasks.check_count(texts, beside=count)
    for side, first, end in (("query", 0, count), ("document", count, len(texts))):
        read = prepend_prompt(tasks, texts[:end], VectorFields(prompt_name=side))
        options = tasks.reading(request, options_of(tasks, side))
        async for chunk in each(tasks.tokenizer.chunks(read, options, tasks.truncation(request), position=first)):
            yield side, chunk
