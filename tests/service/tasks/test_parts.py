"""Long requests: tokenized in turns while the model runs, ended by their deadline, and whole in their failures."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from packbert.service.artifact import open_artifact
from packbert.service.errors import DeadlineExceeded, Invalid, Overloaded, ServiceError, TooLarge, TooMuchForDeadline
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import RequestCounts
from packbert.service.settings import Settings
from packbert.service.tasks.base import Limits, TaskResult, Tasks
from packbert.service.tasks.deadline import DEADLINE, Deadline
from packbert.service.tasks.defaults import embedding_defaults
from packbert.service.tasks.embed import OPTIONS
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.windows import run_windows
from packbert.service.tokenization.encoding import PromptedTexts
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.service.fakes import FakeRunner, adds_up, make_queue, settle

Story = Callable[[Tasks, Batcher, FakeRunner], Coroutine[Any, Any, None]]
LONG_TEXT = "The dog walked to the river, and it was a cold day. " * 600  # about 60 windows of 144
LONG = [f"cat {'dog ' * (n % 90)}" for n in range(400)]


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    opened = Tokenizer(open_artifact(bert_artifact), max_characters=10**6)
    opened.open()
    yield opened
    opened.close()


def play(
    tokenizer: Tokenizer,
    story: Story,
    *,
    max_tokens: int = 10**6,
    held: bool = False,
    rate: float = 1e9,
    limit: int = 2**62,
) -> RequestCounts:
    """Runs the story on a batcher that has not begun to serve; its counts, when nothing is left in it."""

    async def whole() -> RequestCounts:
        runner = FakeRunner(held=held)
        queue = make_queue(token_budget=512, max_tokens=max_tokens, tokens_per_second=rate)
        batcher, artifact = Batcher(run=runner.run, queue=queue), tokenizer.artifact
        tasks = Tasks(
            manifest=artifact.manifest,
            tokenizer=tokenizer,
            queue=batcher,
            limits=Limits(max_inputs=2048, truncate=False, max_tokens=limit),
            embedding=embedding_defaults(artifact.manifest, Settings(artifact=artifact.folder)),
        )
        await story(tasks, batcher, runner)
        assert adds_up(batcher)
        assert (batcher.counts.in_flight, queue.tokens, queue.reserved) == (0, 0, 0)
        assert (tokenizer.turns.requests, tokenizer.turns.characters) == (0, 0)
        return batcher.counts

    return asyncio.run(whole())


async def ask(tasks: Tasks, texts: list[str], *deadline: float) -> TaskResult:
    DEADLINE.set(Deadline(*deadline or (60.0,)))
    return await tasks.run(texts, EmbedRequest(inputs=texts), OPTIONS["cls"])


@asynccontextmanager
async def busy_thread(tokenizer: Tokenizer) -> AsyncIterator[None]:
    """The tokenizer's thread reads nothing meanwhile."""
    free = threading.Event()
    waiting = asyncio.get_running_loop().run_in_executor(tokenizer._thread, free.wait)
    yield
    free.set()
    await waiting


async def error_of(tasks: Tasks, texts: list[str], *deadline: float) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await ask(tasks, texts, *deadline)
    return caught.value


def test_the_model_runs_while_a_request_is_tokenized_and_the_answer_is_whole(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, runner: FakeRunner) -> None:
        serving = asyncio.create_task(batcher.serve())
        asking = asyncio.create_task(ask(tasks, LONG))
        while not runner.batches:  # noqa: ASYNC110 - the tokenizer's thread is real
            await asyncio.sleep(0)
        assert tokenizer.turns.characters > 0
        assert batcher.queue.reserved > 0
        result = await asking
        expected = tokenizer.encode_sync(LONG, OPTIONS["cls"], None)
        assert [one.ids.tolist() for one in result.sequences] == [one.ids.tolist() for one in expected]
        assert len(result.rows) == len(LONG)
        assert result.tokens == sum(len(one) for one in expected)
        batcher.close("closed")
        await serving

    assert play(tokenizer, story) == RequestCounts(received=1, answered=1)


def test_the_stages_of_a_request_do_not_add_up_to_more_than_it_took(tokenizer: Tokenizer) -> None:
    """The model runs on the first part until all others are tokenized: most of tokenizing passed beside the run."""

    async def story(tasks: Tasks, batcher: Batcher, runner: FakeRunner) -> None:
        serving = asyncio.create_task(batcher.serve())
        started = time.perf_counter()
        asking = asyncio.create_task(ask(tasks, LONG))
        while not runner.batches or tokenizer.turns.characters:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        runner.release()
        result = await asking
        assert min(result.stage_seconds) >= 0
        assert sum(result.stage_seconds) <= time.perf_counter() - started
        batcher.close("closed")
        await serving

    assert play(tokenizer, story, held=True) == RequestCounts(received=1, answered=1)


@pytest.mark.parametrize(("text", "code"), [("", "empty"), ("cat " * 600, "too_long")])
def test_an_invalid_text_at_the_end_fails_the_whole_request_with_its_index(
    tokenizer: Tokenizer, text: str, code: str
) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        error = await error_of(tasks, [*LONG, text, *LONG[:10]])
        assert isinstance(error, Invalid)
        assert (error.code, error.index) == (code, 400)

    assert play(tokenizer, story) == RequestCounts(received=1, cancelled=1)


def test_a_deadline_ends_tokenizing_with_503(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        async with busy_thread(tokenizer):
            error = await error_of(tasks, LONG, 0.5)
        assert isinstance(error, DeadlineExceeded)
        assert error.message.endswith("0 of 400 inputs had been dispatched, 0 tokenized")

    assert play(tokenizer, story) == RequestCounts(received=1, expired=1)


def test_a_deadline_that_has_passed_before_the_request_is_queued_is_503(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        error = await error_of(tasks, LONG, 0.0)
        assert isinstance(error, DeadlineExceeded)

    assert play(tokenizer, story) == RequestCounts()


def test_what_is_tokenized_counts_for_the_admission_of_the_next_request(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, _: FakeRunner) -> None:
        first = asyncio.create_task(ask(tasks, LONG))
        await asyncio.sleep(0)
        assert batcher.queue.reserved == pytest.approx(18_600, rel=0.2)
        assert isinstance(await error_of(tasks, LONG), Overloaded)
        first.cancel()
        await asyncio.wait([first])

    assert play(tokenizer, story, max_tokens=30_000) == RequestCounts(received=2, refused=1, cancelled=1)


def test_a_request_that_is_larger_than_the_queue_is_tokenized_as_its_parts_run(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, runner: FakeRunner) -> None:
        serving, loop = asyncio.create_task(batcher.serve()), asyncio.get_running_loop()
        asking = asyncio.create_task(ask(tasks, LONG))
        await settle()
        characters = tokenizer.turns.characters
        for _ in range(50):  # the tokenizer's thread may read so many steps, which are more than all
            await loop.run_in_executor(tokenizer._thread, int)
            await settle()
            assert batcher.queue.expected <= 900
        assert tokenizer.turns.characters > 0.8 * characters
        runner.release()
        result = await asking
        expected = tokenizer.encode_sync(LONG, OPTIONS["cls"], None)
        assert [one.ids.tolist() for one in result.sequences] == [one.ids.tolist() for one in expected]
        assert len(result.rows) == len(LONG)
        assert result.tokenize_seconds == 0
        batcher.close("closed")
        await serving

    counts = play(tokenizer, story, max_tokens=2000, held=True, limit=1800)
    assert counts == RequestCounts(received=1, answered=1)


def test_a_request_whose_answer_grows_with_its_tokens_is_not_in_parts(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        with pytest.raises(
            TooLarge, match=r"the queue takes at most 1800 at once .*: send at most \d+ inputs like these"
        ):
            await tasks.run(LONG, EmbedRequest(inputs=LONG), OPTIONS["cls"], in_parts=False)

    assert play(tokenizer, story, max_tokens=2000, limit=1800) == RequestCounts(received=1, refused=1)


def test_the_deadline_of_a_large_request_follows_its_size_unless_the_client_has_set_it(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, _: FakeRunner) -> None:
        async def seconds_of(*deadline: float) -> float:
            asking = asyncio.create_task(ask(tasks, LONG, *deadline))
            await settle()
            (request,) = batcher.queue.waiting
            asking.cancel()
            await asyncio.wait([asking])
            return request.deadline - request.arrived

        assert await seconds_of(60.0, 3600.0) == pytest.approx(4 * 18_600 / 100, rel=0.2)
        assert await seconds_of(60.0, 300.0) == pytest.approx(300.0)  # the clock is a large number
        for short in ((60.0,), (60.0, 100.0)):
            error = await error_of(tasks, LONG, *short)
            assert isinstance(error, TooMuchForDeadline)
            assert "or a longer x-request-timeout-ms (without it: up to BERT_MAX_TIMEOUT_MS)" in error.message

    counts = play(tokenizer, story, rate=100.0)
    assert counts == RequestCounts(received=4, cancelled=2, refused=2)


async def ask_windows(tasks: Tasks, texts: list[str], seconds: float = 60.0) -> TaskResult:
    request = EmbedRequest(inputs=texts, long="windows")
    DEADLINE.set(Deadline(seconds))
    return await run_windows(tasks, texts, request, OPTIONS["cls"])


def test_windows_are_admitted_before_they_are_made_and_run_while_others_are(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, runner: FakeRunner) -> None:
        serving = asyncio.create_task(batcher.serve())
        asking = asyncio.create_task(ask_windows(tasks, [LONG_TEXT, "cat", LONG_TEXT]))
        await asyncio.sleep(0)
        assert (batcher.queue.tokens, runner.batches) == (0, [])
        expected = batcher.queue.reserved
        while not runner.batches:  # noqa: ASYNC110 - the tokenizer's thread is real
            await asyncio.sleep(0)
        assert tokenizer.turns.characters > 0
        assert batcher.queue.reserved > 0
        result = await asking
        assert expected == pytest.approx(result.tokens, rel=0.3)
        assert list(result.owners) == sorted(result.owners)
        assert len(result.added) == len(result.sequences) > 3
        assert len(result.rows) == len(result.sequences)
        batcher.close("closed")
        await serving

    assert play(tokenizer, story) == RequestCounts(received=1, answered=1)


def test_windows_without_room_in_the_queue_are_refused_before_they_are_made(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        first = asyncio.create_task(ask_windows(tasks, [LONG_TEXT] * 2))
        await asyncio.sleep(0)
        read = tokenizer.turns.characters
        with pytest.raises(Overloaded):
            await ask_windows(tasks, [LONG_TEXT] * 2)
        assert tokenizer.turns.characters == read
        first.cancel()
        await asyncio.wait([first])

    assert play(tokenizer, story, max_tokens=25_000) == RequestCounts(received=2, refused=1, cancelled=1)


def test_a_deadline_ends_the_making_of_windows(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        async with busy_thread(tokenizer):
            with pytest.raises(DeadlineExceeded, match=r"0 of \d+ inputs had been dispatched, \d+ tokenized"):
                await ask_windows(tasks, [LONG_TEXT] * 20, seconds=0.5)

    assert play(tokenizer, story) == RequestCounts(received=1, expired=1)


def test_an_empty_text_among_windows_fails_the_request_with_its_index(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        with pytest.raises(Invalid) as caught:
            await ask_windows(tasks, [LONG_TEXT, "cat", ""])
        assert (caught.value.code, caught.value.index) == ("empty", 2)

    assert play(tokenizer, story) == RequestCounts(received=1, cancelled=1)


def test_the_deadline_includes_the_targets_of_fill_mask(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, __: FakeRunner) -> None:
        request = FillMaskRequest(inputs="the [MASK]", targets=["c" * 500_000], first_piece=True)
        DEADLINE.set(Deadline(0.001))
        with pytest.raises(DeadlineExceeded, match=r"after 0\.001 s, before the texts were tokenized"):
            await fill_mask(tasks, request)

    assert play(tokenizer, story) == RequestCounts()


def test_requests_that_run_alone_wait_for_each_other_and_count_what_they_cost(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, runner: FakeRunner) -> None:
        serving = asyncio.create_task(batcher.serve())
        texts = tokenizer.encode_sync(["cat"], OPTIONS["cls"], None)

        async def run_late() -> None:
            DEADLINE.set(Deadline(0.01))
            await tasks.run_alone(texts, cost=400)

        running = [asyncio.create_task(tasks.run_alone(texts, cost=400)) for _ in range(3)]
        late = asyncio.create_task(run_late())
        await settle()
        assert (len(runner.batches), batcher.queue.reserved) == (1, 3 * 400)
        with pytest.raises(Overloaded):
            await tasks.run_alone(texts, cost=400)
        with pytest.raises(DeadlineExceeded):
            await late
        running.pop().cancel()
        runner.release()
        assert [len((await one).rows) for one in running] == [1, 1]
        assert [len(batch) for batch in runner.batches] == [1, 1]
        assert not tasks.alone.locked()
        batcher.close("closed")
        await serving

    counts = play(tokenizer, story, max_tokens=1500, held=True)
    assert counts == RequestCounts(received=5, answered=2, refused=1, expired=1, cancelled=1)


def test_a_prompt_counts_with_each_text_and_is_put_before_them_one_at_a_time(tokenizer: Tokenizer) -> None:
    texts = PromptedTexts("the cat " * 10, ["sat", ("a", "b")] * 1000)
    assert tokenizer.measure(texts) == [83, 82] * 1000
    assert (texts[0], texts[1], len(texts[2:4])) == ("the cat " * 10 + "sat", ("the cat " * 10 + "a", "b"), 2)
