"""The engine alone, as the service runs it: queue, batcher and model runner, without HTTP and tokenizer."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from benchmarks.engine.engines import Ids, tokens_of
from benchmarks.engine.turns import clock_for
from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import open_artifact
from packbert.service.engine.calibration import measure
from packbert.service.engine.engine import concurrency_for
from packbert.service.engine.memory import use_huge_pages
from packbert.service.engine.runner import ModelRunner
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import Chunk

NO_LIMIT_SECONDS = 3600.0
BUDGETS = (128, 256, 512)  # BERT_TOKEN_BUDGET, as the sizes of batches that other engines try


async def submit(batcher: Batcher, work: Sequence[Tokens]) -> None:
    """A request of one chunk, until its rows are there. Raises what has ended it."""
    chunk = Chunk(work)
    request = batcher.admit(chunk.tokens, len(work), timeout_seconds=NO_LIMIT_SECONDS)
    await batcher.send(request, chunk)
    batcher.leave(request, answered=request.error is None)
    if request.error is not None:
        raise request.error


class EngineAlone:
    """One artifact, loaded and calibrated as at a start of the service."""

    def __init__(self, artifact: Path, threads: int) -> None:
        ort.set_default_logger_severity(3)  # errors only: the optimizer warns of each initializer that it removes
        opened = open_artifact(artifact)
        self.runner = ModelRunner(opened, threads, concurrency_for(opened, threads))
        self.runner.open()
        self.calibration = measure(self.runner, token_budget=0)
        use_huge_pages()  # as the service, in a thread
        self.token_budget = self.calibration.token_budget  # BERT_TOKEN_BUDGET
        self.loop, self._clock = asyncio.new_event_loop(), clock_for(threads)

    def seconds(self, requests: Sequence[Sequence[Tokens]]) -> float:
        """From submitting all `requests` at once to the last answer."""
        return self.loop.run_until_complete(self._seconds(requests))

    async def _seconds(self, requests: Sequence[Sequence[Tokens]]) -> float:
        queue = RequestQueue(
            token_budget=self.token_budget,
            max_tokens=2**31,
            max_wait_seconds=NO_LIMIT_SECONDS,
            tokens_per_second=self.calibration.tokens_per_second,
        )
        batcher = Batcher(run=self.runner.run, queue=queue, concurrency=self.runner.concurrency)
        serving = asyncio.create_task(batcher.dispatcher.serve())
        started = self._clock()
        await asyncio.gather(*(submit(batcher, work) for work in requests))
        seconds = self._clock() - started
        batcher.close("measured")
        await serving
        return seconds


class Ours:
    """The engine alone as a contender, one text a request; the size of batches is chosen as an operator may set it."""

    def __init__(self, artifact: Path, threads: int) -> None:
        self._engine = EngineAlone(artifact, threads)

    def choices(self, texts: Sequence[Ids]) -> dict[str, int]:
        measured = self._engine.calibration.token_budget
        self.seconds(texts, measured)  # warms up
        budgets = dict.fromkeys((measured, *BUDGETS))
        return {f"batches of {one} tokens; by itself the service takes {measured}": one for one in budgets}

    def seconds(self, texts: Sequence[Ids], token_budget: int) -> float:
        self._engine.token_budget = token_budget
        return self._engine.seconds([[tokens] for tokens in tokens_of(texts)])
