"""The flow of a request over the real tokenizer and queue: its chunks, its place, its deadline, and how it fails."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packbert.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    Overloaded,
    ServiceError,
    TooLarge,
    TooMuchForDeadline,
)
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import RequestCounts
from packbert.service.tasks import flow
from packbert.service.tasks.attention import AttentionRequest, attention, expected_cost
from packbert.service.tasks.embed import embed
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.flow import TaskResult, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest, TruncationFields
from packbert.service.tasks.likelihood import score_sentences
from packbert.service.tasks.tag import TagRequest, tag
from packbert.service.tokenization import chunks
from packbert.service.tokenization import tokenizer as tokenizer_module
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.turns import DEADLINE, Deadline
from tests.service.fakes import play as play_fake
from tests.service.fakes import settle, until
from tests.service.tasks.fake_vectors import CountingModel, Story, play
from tests.service.tokenization.reading import open_tokenizer

LONG = [f"cat {'dog ' * (n % 90)}" for n in range(400)]  # 18,600 tokens in 20 chunks
Asked = Coroutine[Any, Any, TaskResult]
Ask = Callable[[Tasks], Asked]


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    with open_tokenizer(bert_artifact, 10**6) as tokenizer:
        yield tokenizer


def tell(tokenizer: Tokenizer, story: Story, **how: Any) -> RequestCounts:
    return asyncio.run(play(tokenizer, story, **how))


def tell_fake(tokenizer: Tokenizer, story: Story, **how: Any) -> RequestCounts:
    """On a clock that never waits: not for the tokenizer's thread either, so for short texts."""
    return play_fake(lambda time: play(tokenizer, story, clock=time.clock, **how))


def ask(tasks: Tasks, inputs: Any = LONG, *deadline: float, **fields: Any) -> Asked:
    DEADLINE.set(Deadline(*deadline or (60.0,)))
    return answer_request(tasks, embed, EmbedRequest(inputs=inputs, **fields))


def fill(tasks: Tasks, **body: Any) -> Asked:
    return answer_request(tasks, fill_mask, FillMaskRequest.model_validate(body))


def score(tasks: Tasks, *texts: str) -> Asked:
    read = partial(score_sentences, texts=texts, variant="within_word")
    return answer_request(tasks, lambda tasks, request: read(tasks, request=request), TruncationFields())


def attend(tasks: Tasks, *deadline: float) -> Asked:
    DEADLINE.set(Deadline(*deadline or (60.0,)))
    return answer_request(tasks, attention, AttentionRequest(inputs="cat " * 98, reduce="mean"))


async def error_of(asked: Asked) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await asked
    return caught.value


@asynccontextmanager
async def busy_thread(tokenizer: Tokenizer) -> AsyncIterator[None]:
    """The tokenizer's thread reads nothing meanwhile."""
    free = threading.Event()
    waiting = asyncio.get_running_loop().run_in_executor(tokenizer.turns.thread, free.wait, 30)
    yield
    free.set()
    await waiting


def test_the_model_runs_while_later_texts_are_tokenized(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, model: CountingModel) -> None:
        started = time.perf_counter()
        asking = asyncio.create_task(ask(tasks))
        await until(lambda: model.lengths and not tokenizer.turns.requests)
        (request,) = batcher.queue.waiting
        sizes, window = [chunk.tokens for chunk in request.unanswered], batcher.model.window
        assert sum(sizes[:-1]) <= window < sum(sizes)
        assert request.left > 10_000
        model.release()
        result = await asking
        assert (len(result.sequences), result.owners, result.rows) == (400, list(range(400)), [])
        assert result.tokens == sum(model.lengths) == sum(map(len, result.sequences))
        assert min(result.stage_seconds) >= 0
        assert sum(result.stage_seconds) <= time.perf_counter() - started

    assert tell(tokenizer, story, held=True, max_tokens=10_000) == RequestCounts(received=1, answered=1)


WRONG = {"empty": ("", "empty"), "too long": ("cat " * 600, "too_long"), "poison": ("the river", "run_failed")}
SIZES = st.lists(st.integers(0, 200), min_size=1, max_size=24)


@pytest.mark.parametrize("how", ["texts", "windows", "ids"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=SIZES, chunk=st.integers(10, 2000), window=st.integers(1, 3000), wrong=st.none() | st.sampled_from([*WRONG])
)
def test_in_chunks_of_any_size_the_answer_is_the_same(
    tokenizer: Tokenizer,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    chunk: int,
    window: int,
    wrong: str | None,
) -> None:
    limit = 10**6 if how == "windows" else 140
    texts = [" ".join(["cat", *["dog"] * min(n, limit), str(n)]) for n in sizes]
    text, code = WRONG[wrong or "poison"]
    place = sum(sizes) % len(texts)
    if wrong and not (how == "windows" and wrong == "too long"):
        texts[place] = text
    else:
        wrong = None
    library, fields = tokenizer._plain, {"long": "windows"} if how == "windows" else {}

    def inputs(texts: list[str]) -> Any:
        return [library.encode(one, add_special_tokens=False).ids for one in texts] if how == "ids" else texts

    def request(tasks: Tasks, texts: list[str]) -> Asked:
        named = {"tokenizer": tasks.manifest.name} if how == "ids" else {}
        return ask(tasks, inputs(texts), **fields, **named)

    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        ((model.poison,),) = await tokenizer.word_ids(["river"])
        if wrong is not None:
            error = await error_of(request(tasks, texts))
            assert (error.code, error.index) == (code, place)
            return
        alone = [await request(tasks, [one]) for one in texts]
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "CHUNK_CHARACTERS", chunk)
            patch.setattr(flow, "CHUNK_TOKENS", chunk)
            patch.setattr(tokenizer_module, "is_short", lambda _: False)
            together = await request(tasks, texts)
        assert np.array_equal(together.value, np.concatenate([one.value for one in alone]))
        assert together.owners == [at for at, one in enumerate(alone) for _ in one.sequences]
        assert together.tokens == sum(one.tokens for one in alone)
        assert list(together.windows) == [count for one in alone for count in one.windows]

    tell(tokenizer, story, window=window)


@pytest.mark.parametrize(
    "asking",
    [
        lambda tasks: ask(tasks, LONG, 0.05),
        lambda tasks: ask(tasks, LONG, 0.05, long="windows"),
        lambda tasks: (DEADLINE.set(Deadline(0.05)), fill(tasks, inputs="[MASK]", targets=["c" * 9999]))[1],
    ],
    ids=["texts", "windows", "targets"],
)
def test_a_deadline_ends_a_request_that_waits_for_the_tokenizer(tokenizer: Tokenizer, asking: Ask) -> None:
    async def story(tasks: Tasks, _: Batcher, __: CountingModel) -> None:
        async with busy_thread(tokenizer):
            error = await error_of(asking(tasks))
        assert isinstance(error, DeadlineExceeded)
        assert "after 0.050 s, before the texts were tokenized: send less" in error.message

    assert tell(tokenizer, story) == RequestCounts()


def test_a_deadline_ends_an_admitted_request_that_waits_for_the_tokenizer(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, _: CountingModel) -> None:
        asking = asyncio.create_task(ask(tasks))
        deadline = DEADLINE.get()
        await until(lambda: batcher.counts.received)
        deadline.seconds -= deadline.seconds_left - 0.05
        async with busy_thread(tokenizer):
            error = await error_of(asking)  # type: ignore[arg-type]
        assert isinstance(error, DeadlineExceeded)

    assert tell(tokenizer, story) == RequestCounts(received=1, expired=1)


@pytest.mark.parametrize(
    "asking",
    [
        lambda tasks: ask(tasks, ["cat"] * 30),
        lambda tasks: score(tasks, "cat " * 100),
        lambda tasks: fill(tasks, inputs=["[MASK] " * 20] * 7, targets=["unaffable"]),
        lambda tasks: fill(tasks, inputs=["[MASK] " + "爱" * 90] * 7, joint=True),
    ],
    ids=["texts", "likelihood", "whole words", "joint"],
)
def test_a_deadline_ends_what_has_not_run(tokenizer: Tokenizer, asking: Ask) -> None:
    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        DEADLINE.set(Deadline(60.0))
        error = await error_of(asking(tasks))
        assert isinstance(error, DeadlineExceeded)
        assert "inputs had been dispatched" in error.message
        assert len(model.lengths) == 1

    assert tell_fake(tokenizer, story, held=True, budget=50) == RequestCounts(received=1, expired=1)


def test_requests_of_attention_wait_for_each_other_and_count_what_they_cost(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, model: CountingModel) -> None:
        running = [asyncio.create_task(attend(tasks)) for _ in range(3)]
        late = asyncio.create_task(attend(tasks, 5.0))
        await settle()
        cost = expected_cost(100, 3 * 100**2, tasks.manifest.sizes)
        assert cost > 1000
        assert (model.lengths, batcher.queue.expected) == ([100], 4 * cost - 100)
        batcher.queue.max_tokens = 4 * cost
        assert isinstance(await error_of(attend(tasks)), Overloaded)
        with pytest.raises(DeadlineExceeded, match="while other requests of /attention ran"):
            await late
        running.pop().cancel()
        model.release()
        assert [len((await one).value["attention"]) for one in running] == [3, 3]
        assert model.lengths == [100, 100]

    counts = tell_fake(tokenizer, story, held=True, window=10**6)
    assert counts == RequestCounts(received=5, answered=2, refused=1, expired=1, cancelled=1)


LEAVING: dict[str, Ask] = {
    "texts": ask,
    "windows": partial(ask, inputs=["the cat walked. " * 1000] * 3, long="windows"),
    "likelihood": lambda tasks: score(tasks, *["cat " * 100] * 9),
    "joint": lambda tasks: fill(tasks, inputs=["a [MASK] [MASK] [MASK]"] * 20, joint=True, beam=3),
    "attention": attend,
}


@pytest.mark.parametrize("name", LEAVING)
@settings(max_examples=12)
@given(turns=st.integers(0, 9).map(lambda n: 3**n // 2), held=st.booleans())
def test_a_client_that_leaves_leaves_nothing_behind(tokenizer: Tokenizer, name: str, turns: int, held: bool) -> None:
    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        first, second = (asyncio.create_task(LEAVING[name](tasks)) for _ in range(2))
        await settle(turns)
        first.cancel()
        await asyncio.wait([first])
        model.release()
        await second

    counts = tell(tokenizer, story, held=held)
    assert (counts.failed, counts.expired, counts.refused) == (0, 0, 0)


def test_the_deadline_of_a_large_request_follows_its_size_unless_stated(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, _: CountingModel) -> None:
        async def seconds_of(*deadline: float) -> float:
            asking = asyncio.create_task(ask(tasks, LONG, *deadline))
            await until(lambda: batcher.queue.waiting)
            (request,) = batcher.queue.waiting
            asking.cancel()
            await asyncio.wait([asking])
            seconds = request.deadline - request.arrived
            assert DEADLINE.get().seconds == pytest.approx(seconds, rel=0.2), "also of what is tokenized later"
            return seconds

        assert await seconds_of(60.0, 3600.0) == pytest.approx(4 * 18_600 / 100, rel=0.2)
        assert await seconds_of(60.0, 300.0) == pytest.approx(300.0)  # the clock is a large number
        for short in ((60.0,), (60.0, 100.0)):
            error = await error_of(ask(tasks, LONG, *short))
            assert isinstance(error, TooMuchForDeadline)
            assert "or a longer x-request-timeout-ms (without it: up to an hour)" in error.message
        error = await error_of(score(tasks, "cat " * 100))
        assert isinstance(error, TooMuchForDeadline)
        assert error.message.startswith("the request has about 10200 tokens, which take about 102.0 s here")
        assert "; they are 100 passes of the model: send shorter texts" in error.message

    counts = tell(tokenizer, story, rate=100.0, held=True)
    assert counts == RequestCounts(received=5, cancelled=2, refused=3)


def test_the_time_before_the_queue_is_taken_from_the_deadline(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        asking = asyncio.create_task(ask(tasks, ["cat"] * 2))
        DEADLINE.get().started -= 50.0
        assert isinstance(await error_of(asking), DeadlineExceeded)  # type: ignore[arg-type]
        assert model.lengths == [3]
        assert 9.0 < asyncio.get_running_loop().time() <= 10.0
        assert isinstance(await error_of(ask(tasks, ["cat"], 0.0)), DeadlineExceeded)

    assert tell_fake(tokenizer, story, held=True, budget=4) == RequestCounts(received=1, expired=1)


@pytest.mark.parametrize(
    "asking",
    [
        lambda tasks, poisoned: score(tasks, "cat", "a " * 30, poisoned, "dog"),
        lambda tasks, poisoned: fill(tasks, inputs=["[MASK]", "a [MASK]", f"[MASK] {poisoned}"], targets=["unaffable"]),
        lambda tasks, poisoned: fill(
            tasks, inputs=["[MASK]", "[MASK] [MASK]", f"[MASK] {poisoned}"], joint=True, beam=3
        ),
    ],
    ids=["likelihood", "whole words", "joint"],
)
def test_a_failed_pass_fails_the_request_with_the_index_of_its_text(
    tokenizer: Tokenizer, asking: Callable[[Tasks, str], Asked]
) -> None:
    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        ((model.poison,),) = await tokenizer.word_ids(["river"])
        error = await error_of(asking(tasks, "the river"))
        assert isinstance(error, InferenceFailed)
        assert error.index == 2

    assert tell(tokenizer, story) == RequestCounts(received=1, failed=1)


def test_the_queue_counts_the_tokens_of_all_passes(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, batcher: Batcher, model: CountingModel) -> None:
        asking = asyncio.create_task(score(tasks, *["cat " * 100] * 5))
        await until(lambda: model.lengths)
        await settle()
        assert batcher.queue.expected == 5 * 100 * 102 - model.lengths[0]
        model.release()
        result = await asking
        assert (len(result.sequences), result.tokens, sum(model.lengths)) == (500, 51_000, 51_000)
        assert [one["pseudo_log_likelihood"] for one in result.value] == [-100.0] * 5
        model.lengths.clear()
        result = await fill(tasks, inputs=["a [MASK] [MASK] [MASK]", "[MASK]"], joint=True, beam=3, top_k=2)
        assert model.lengths == [6 + 3, 3 * 6, 3 * 6], "a round for each mask, a pass for each text of the beam"
        assert (result.tokens, result.owners) == (45, [0, 1, *[0] * 6])
        assert [len(one) for one in result.value] == [2, 2]
        assert result.value[0][0]["log_probability"] == -3.0

    assert tell(tokenizer, story, held=True) == RequestCounts(received=2, answered=2)


def test_a_request_that_a_later_chunk_shows_too_large_is_refused(tokenizer: Tokenizer) -> None:
    async def story(tasks: Tasks, _: Batcher, model: CountingModel) -> None:
        few = replace(tasks, settings=tasks.settings.model_copy(update={"max_waiting_tokens": 3334}))
        with pytest.raises(TooLarge, match="the texts have 3237 tokens or more; at most 3000 are tagged at once"):
            await answer_request(few, tag, TagRequest(inputs=LONG))
        assert 0 < sum(model.lengths) <= 3000
        with pytest.raises(TooLarge, match="the texts have 3001 tokens or more, each of them a pass of the model"):
            await score(few, "cat " * 1499, "cat " * 1498)

    assert tell(tokenizer, story) == RequestCounts(received=1, cancelled=1)
