"""Several passes for one input are one request to the queue: counted in full, whole in their failures and deadlines."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service import turns
from packbert.service.artifact import open_artifact
from packbert.service.errors import DeadlineExceeded, InferenceFailed, ServiceError, TooMuchForDeadline
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import Clock, RequestCounts
from packbert.service.settings import Settings
from packbert.service.tasks.base import Limits, Tasks
from packbert.service.tasks.deadline import DEADLINE, Deadline
from packbert.service.tasks.defaults import embedding_defaults
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.inputs import TruncationFields
from packbert.service.tasks.likelihood import score_sentences
from packbert.service.tasks.passes import PASSES_AT_ONCE
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.service.fakes import adds_up, make_queue
from tests.service.fakes import play as play_fake

Story = Callable[[Tasks, Batcher, "MaskRunner"], Coroutine[Any, Any, None]]


class MaskRunner:
    """Gives each mask the same logits; fails a sequence with the token `poison`; ends no run while `held`."""

    def __init__(self, *, held: bool) -> None:
        self.poison = -1
        self.ran: list[int] = []  # tokens of each batch
        self.free = asyncio.Event()
        if not held:
            self.free.set()

    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:  # noqa: ARG002
        size = sum(map(len, sequences))
        self.ran.append(size)
        await self.free.wait()
        if any(self.poison in one.ids for one in sequences):
            raise RuntimeError("the run failed")
        rows: list[Row | None] = [
            {
                "target_logits": np.zeros(len(one.masks) * len(one.targets), np.float32),
                "top_logits": np.zeros((len(one.masks), one.top_k), np.float32),
                "top_ids": np.tile(np.arange(10, 10 + one.top_k), (len(one.masks), 1)),
                "log_sum_exp": np.ones((len(one.masks), 1), np.float32),
            }
            for one in sequences
        ]
        batch = Batch(feeds={}, outputs=frozenset(), spans={}, tokens=size, slots=size, owners=sequences)
        return rows, batch


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    opened = Tokenizer(open_artifact(bert_artifact), max_characters=10**6)
    opened.open()
    yield opened
    opened.close()


def play(tokenizer: Tokenizer, story: Story, *, rate: float = 1e9, held: bool = False) -> RequestCounts:
    """Runs the story on a batcher that serves; its counts, when nothing is left in it."""
    return asyncio.run(_play(tokenizer, story, time.monotonic, rate=rate, held=held))


async def _play(tokenizer: Tokenizer, story: Story, clock: Clock, *, rate: float, held: bool) -> RequestCounts:
    runner = MaskRunner(held=held)
    queue = make_queue(token_budget=512, max_tokens=10**6, tokens_per_second=rate)
    batcher, artifact = Batcher(run=runner.run, queue=queue, clock=clock), tokenizer.artifact
    tasks = Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        queue=batcher,
        limits=Limits(max_inputs=2048, truncate=False),
        embedding=embedding_defaults(artifact.manifest, Settings(artifact=artifact.folder)),
    )
    serving = asyncio.create_task(batcher.serve())
    await story(tasks, batcher, runner)
    runner.free.set()
    batcher.close("closed")
    await serving
    assert adds_up(batcher)
    assert (batcher.counts.in_flight, queue.tokens, queue.reserved) == (0, 0, 0)
    return batcher.counts


def score(tasks: Tasks, texts: list[str], seconds: float = 60.0) -> Any:
    DEADLINE.set(Deadline(seconds))
    return score_sentences(tasks, texts, TruncationFields(), "within_word")


def fill(tasks: Tasks, seconds: float = 60.0, **body: Any) -> Any:
    DEADLINE.set(Deadline(seconds))
    return fill_mask(tasks, FillMaskRequest.model_validate(body))


async def error_of(answer: Coroutine[Any, Any, Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await answer
    return caught.value


@pytest.mark.parametrize(
    ("ask", "passes"),
    [
        (lambda tasks, poisoned: score(tasks, ["cat", "a " * 30, poisoned, "dog"]), 34),
        (lambda tasks, poisoned: fill(tasks, inputs=["[MASK]", "a [MASK]", poisoned], targets=["unaffable"]), 9),
        (lambda tasks, poisoned: fill(tasks, inputs=["[MASK]", "[MASK] [MASK]", poisoned], joint=True, beam=3), 3),
    ],
    ids=["likelihood", "whole words", "joint"],
)
def test_a_failed_pass_fails_the_whole_request_with_the_index_of_its_text(
    tokenizer: Tokenizer, ask: Callable[[Tasks, str], Any], passes: int
) -> None:
    async def story(tasks: Tasks, _: Batcher, runner: MaskRunner) -> None:
        ((runner.poison,),) = await tokenizer.word_ids(["river"])
        error = await error_of(ask(tasks, "the [MASK] river" if passes < 10 else "the river"))
        assert isinstance(error, InferenceFailed)
        assert error.index == 2

    assert play(tokenizer, story) == RequestCounts(received=1, failed=1)


def test_the_queue_counts_the_tokens_of_all_passes(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, runner: MaskRunner) -> None:
        texts = ["cat " * 100] * 5
        asking = asyncio.create_task(score(tasks, texts))
        while not runner.ran:  # noqa: ASYNC110 - the tokenizer's thread is real
            await asyncio.sleep(0)
        assert batcher.counts.in_flight == 1
        assert batcher.queue.expected == 5 * 100 * 102 - runner.ran[0]
        runner.free.set()
        result = await asking
        assert len(result.sequences) == 500 > PASSES_AT_ONCE
        assert (result.tokens, sum(runner.ran)) == (5 * 100 * 102, 5 * 100 * 102)
        assert [one["pseudo_log_likelihood"] for one in result.value] == [-100.0] * 5

    assert play(tokenizer, story, held=True) == RequestCounts(received=1, answered=1)


def test_a_request_that_the_device_cannot_compute_within_its_deadline_is_refused(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, runner: MaskRunner) -> None:
        error = await error_of(score(tasks, ["cat " * 100]))
        assert isinstance(error, TooMuchForDeadline)
        assert error.message.startswith("the request has about 10200 tokens, which take about 102.0 s here")
        assert "; they are 100 passes of the model: send shorter texts" in error.message
        assert runner.ran == []

    assert play(tokenizer, story, rate=100.0) == RequestCounts(refused=1, received=1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tasks: score(tasks, ["cat " * 100]),
        lambda tasks: fill(tasks, inputs=["[MASK] " * 20] * 7, targets=["unaffable"]),
        lambda tasks: fill(tasks, inputs=["[MASK] " + "爱" * 90] * 7, joint=True),
    ],
    ids=["likelihood", "whole words", "joint"],
)
def test_the_deadline_ends_passes_that_have_not_run(tokenizer: Tokenizer, ask: Callable[[Tasks], Any]) -> None:
    async def story(tasks: Tasks, _: Batcher, runner: MaskRunner) -> None:
        assert isinstance(await error_of(ask(tasks)), DeadlineExceeded)
        assert len(runner.ran) == 1

    counts = play_fake(lambda fake: _play(tokenizer, story, fake.clock, rate=1e9, held=True))
    assert counts == RequestCounts(received=1, expired=1)


def test_a_request_that_is_cancelled_leaves_the_queue(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)  # the model runs before all passes are made

    async def story(tasks: Tasks, batcher: Batcher, runner: MaskRunner) -> None:
        asking = asyncio.create_task(score(tasks, ["cat " * 100] * 9))
        while not runner.ran:  # noqa: ASYNC110 - the tokenizer's thread is real
            await asyncio.sleep(0)
        assert batcher.queue.reserved > 0  # not all passes are made
        asking.cancel()
        await asyncio.wait([asking])
        assert batcher.queue.expected == 0

    assert play(tokenizer, story, held=True) == RequestCounts(received=1, cancelled=1)


def test_joint_takes_a_round_for_each_mask_and_a_pass_for_each_text_of_the_beam(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, runner: MaskRunner) -> None:
        result = await fill(tasks, inputs=["a [MASK] [MASK] [MASK]", "[MASK]"], joint=True, beam=3, top_k=2)
        assert runner.ran == [6 + 3, 3 * 6, 3 * 6]
        assert (result.tokens, len(result.sequences)) == (45, 8)
        assert result.owners == [0, 1, *[0] * 6]
        assert [len(one) for one in result.value] == [2, 2]
        assert result.value[0][0]["log_probability"] == -3.0

    assert play(tokenizer, story) == RequestCounts(received=1, answered=1)
