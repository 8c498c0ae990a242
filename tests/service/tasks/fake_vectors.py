"""Tasks over a model that counts: the vector of a text is the number of times that it has each token."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import numpy as np

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import Artifact
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.request import Chunk, QueuedModel
from packbert.service.scheduling.watchdog import Clock, RequestCounts
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Tasks
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.service.fakes import FakeRunner, InstantQueue, adds_up, make_queue

WIDTH = 32  # of the golden BERT's vectors


def make_row(tokens: Tokens) -> Row:
    """Vectors that count tokens; of every mask the same logits; attention of equal parts."""
    count, masks = np.bincount(tokens.ids % WIDTH, minlength=WIDTH).astype(np.float32), len(tokens.masks)
    rows: Row = {
        "target_logits": np.zeros(masks * len(tokens.targets), np.float32),
        "top_logits": np.zeros((masks, tokens.top_k), np.float32),
        "top_ids": np.tile(np.arange(10, 10 + tokens.top_k), (masks, 1)),
        "log_sum_exp": np.ones((masks, 1), np.float32),
        "attention_mean": np.full(len(tokens.layers) * len(tokens) ** 2, 1 / len(tokens), np.float32),
    }
    return {name: rows.get(name, count[None]) for name in tokens.outputs}


class CountingModel(FakeRunner):
    """Fails a sequence with the token `poison`."""

    poison = -1

    def answer(self, tokens: Tokens) -> Row:
        if self.poison in tokens.ids:
            raise RuntimeError("the run failed")
        return make_row(tokens)


class CountingQueue(InstantQueue):
    def answer(self, chunk: Chunk[Any]) -> list[Row]:
        return [make_row(one) for one in chunk.work]


def make_tasks(tokenizer: Tokenizer, queue: Any, *, max_inputs: int = 100, **settings: Any) -> Tasks:
    artifact = tokenizer.artifact
    return Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        queue=cast(Batcher, queue),
        settings=Settings(model=str(artifact.folder), max_inputs=max_inputs, **settings),
    )


def tasks_with_vectors(artifact: Artifact, **settings: Any) -> Tasks:
    """The tasks of the artifact, with its tokenizer, over a queue that answers at once."""
    tokenizer = Tokenizer(artifact, max_characters=1000)
    tokenizer.open()
    return make_tasks(tokenizer, CountingQueue(), **settings)


Story = Callable[[Tasks, Batcher, CountingModel], Coroutine[Any, Any, None]]


async def play(
    tokenizer: Tokenizer,
    story: Story,
    *,
    held: bool = False,
    budget: int = 512,
    window: int = 1024,
    max_tokens: int = 10**6,
    rate: float = 1e9,
    clock: Clock = time.monotonic,
) -> RequestCounts:
    """The counts of a batcher that serves the story, when nothing is left in it."""
    model = CountingModel(held=held)
    queue = make_queue(token_budget=budget, max_tokens=max_tokens, tokens_per_second=rate)
    batcher = Batcher(run=model.run, queue=queue, clock=clock, model=QueuedModel(window=window))
    tasks = make_tasks(tokenizer, batcher, max_inputs=2048)
    serving = asyncio.create_task(batcher.dispatcher.serve())
    await story(tasks, batcher, model)
    model.release()
    batcher.close("closed")
    await serving
    assert adds_up(batcher)
    assert (batcher.counts.in_flight, queue.tokens, queue.held, queue.expected) == (0, 0, 0, 0)
    assert (tokenizer.turns.requests, tokenizer.turns.characters) == (0, 0)
    assert not tasks.alone.locked()
    return batcher.counts
