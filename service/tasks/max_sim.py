"""MaxSim (Khattab and Zaharia 2020): each vector of a query counts with its largest product in a document."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Row
from packbert.service.errors import ServiceError, TooLarge
from packbert.service.scheduling.request import Request
from packbert.service.tasks.base import Forecast, Steps, TaskResult, Tasks
from packbert.service.tasks.embed import prepend_prompt
from packbert.service.tasks.inputs import TruncationFields, VectorFields
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions
from packbert.service.tokenization.jobs import EncodingJob

Read = tuple[str, EncodedText]  # as a query or a document
MAX_HELD = 8_000_000  # numbers of vectors that wait for their scores, and of the queries' vectors: 32 MB


def options_of(tasks: Tasks, side: str) -> EncodeOptions:
    """Of texts that are read as a query or as a document."""
    return EncodeOptions(outputs=frozenset({"multi"}), side=tasks.manifest.sides[side])


def own_vectors(tasks: Tasks, side: str, tokens: EncodedText, row: Row) -> NDArray[Any]:
    """[vectors, width] of a text: those of its tokens that have one."""
    return row["multi"][~np.isin(tokens.ids, tasks.manifest.sides[side].skipped)]


async def score_by_tokens(
    tasks: Tasks, queries: Sequence[str], documents: Sequence[str], request: TruncationFields
) -> TaskResult:
    """[documents] float64: the score of each document for the query at its place, or for the only one.

    The index of an error is that of a document; an error of a query has none. Raises TooLarge for too many queries.
    """
    tasks.check_count(documents)
    texts, jobs = [*queries, *documents], list[EncodingJob]()
    try:
        sizes = tasks.tokenizer.measure(texts)
        for side, end in (("query", len(queries)), ("document", len(texts))):
            read, _ = prepend_prompt(tasks, texts[:end], VectorFields(prompt_name=side))
            options = tasks.reading(request, options_of(tasks, side))
            jobs.append(tasks.tokenizer.start_job(read, sizes[:end], options, tasks.truncation(request)))
        jobs[1].position = len(queries)  # so that the index in an error is that in `texts`
        count, expected = len(texts), sum(job.expected_tokens for job in jobs)
        scoring = _Scoring(
            expected_sequences=count, expected_tokens=expected, owners=[*range(count)], tasks=tasks, jobs=jobs
        )
        result = await tasks.run_steps(scoring, scoring.steps)
    except ServiceError as error:
        if error.index is not None:
            error.index -= len(queries)
            if error.index < 0:
                error.message, error.index = f"query: {error.message}", None
        raise
    result.compared = ()
    return result.finish(np.array(scoring.scores))


@dataclass(slots=True, eq=False, kw_only=True)
class _Scoring(Forecast):
    """The queries and then the documents of a request, whose vectors are let go of as they are scored."""

    tasks: Tasks
    jobs: Sequence[EncodingJob]  # of the queries, of the documents
    scores: list[float] = field(default_factory=list)
    _queries: list[NDArray[Any]] = field(default_factory=list)  # the vectors of each

    async def steps(self, request: Request) -> Steps:
        most, waiting, held = MAX_HELD // int(self.tasks.manifest.outputs["multi"].shape[-1]), list[Read](), 0
        for side, job in zip(("query", "document"), self.jobs, strict=True):
            async for made in self.tasks.tokenizer.run_job(job, queued=True):
                self.expected_tokens = sum(one.expected_tokens for one in self.jobs)
                yield made
                waiting += [(side, one) for one in made]
                held += sum(map(len, made))
                if held > most and side == "query":
                    raise TooLarge(f"the queries have more than {most} tokens in all: split the request")
                if held > most or not self.expected_tokens:
                    await asyncio.to_thread(self._add, waiting, await request.next_rows())
                    waiting, held = [], 0

    def _add(self, texts: Sequence[Read], rows: Sequence[Row]) -> None:
        """Keeps the vectors of queries, and scores documents by them."""
        averages = self.tasks.manifest.sides["query"].averages
        for (side, tokens), row in zip(texts, rows, strict=True):
            vectors = own_vectors(self.tasks, side, tokens, row)
            if side == "query":
                self._queries.append(vectors)
                continue
            query = self._queries[len(self.scores) % len(self._queries)]
            best = (query @ vectors.T).max(axis=1).astype(np.float64)
            self.scores.append(float(best.mean() if averages else best.sum()))
