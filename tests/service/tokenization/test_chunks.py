"""Chunks of a request's texts, their turns on the tokenizer's thread, and long texts, whose beginnings are read."""

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import DeadlineExceeded, Invalid, Overloaded
from packbert.service.tokenization import chunks
from packbert.service.tokenization.chunks import (
    CHUNK_CHARACTERS,
    MAX_WAITING,
    TextReader,
    Turns,
    find_word_ends,
    in_steps,
)
from packbert.service.tokenization.encoding import Direction, EncodedText, EncodeOptions, Text
from packbert.service.tokenization.tokenizer import count_each
from packbert.service.turns import DEADLINE, Deadline
from tests.paths import GOLDEN
from tests.service.fakes import FakeTime, on_loop, played, settle
from tests.service.tokenization.reading import fields, read_all, read_chunks

FAMILIES = ("albert", "bert", "camembert", "roberta", "xlm-roberta")
OPTIONS = EncodeOptions(outputs=frozenset({"cls"}), spans=True, pooled_from=3)
WORDS = (
    "cat",
    "dog",
    "unaffable",
    "it's",
    "U.S.",
    "7,5",
    "naïve",
    "e\u0301",
    "北京大学",
    "[MASK]",
    "\u200b",
    "!?",
    "a-b",
)
GAPS = (" ", " ", " ", "  ", "\n", ", ", ". ", "")
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=60).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)


def open_family(family: str) -> tuple[HFTokenizer, re.Pattern[str] | None]:
    tokenizer = HFTokenizer.from_file(str(GOLDEN / f"{family}-tags" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer, find_word_ends(tokenizer)


TOKENIZERS = {family: open_family(family) for family in FAMILIES}


def make_reader(
    tokenizer: HFTokenizer,
    word_ends: re.Pattern[str] | None,
    inputs: Sequence[Text],
    truncate: Direction | None,
    *,
    limit: int = 16,
) -> TextReader:
    return TextReader(tokenizer, inputs, count_each(inputs), OPTIONS, limit, -1, truncate, word_ends)


def read(
    family: str, inputs: Sequence[Text], truncate: Direction | None, *, limit: int = 16, whole: bool = False
) -> list[EncodedText]:
    tokenizer, word_ends = TOKENIZERS[family]
    assert word_ends is not None
    return read_all(make_reader(tokenizer, None if whole else word_ends, inputs, truncate, limit=limit))[0]


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of some words are long ones, whose beginnings are read from 16 characters on."""
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 10)
    monkeypatch.setattr(chunks, "BEGINNING_CHARACTERS_PER_TOKEN", 1)


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none(), truncate=st.sampled_from(["left", "right"]))
@example(first="unaffable " * 40, second="!?" * 10, truncate="right")  # at first the side that is cut has fewer tokens
@example(first="!?" * 10, second="unaffable " * 40, truncate="right")
def test_the_beginning_of_a_text_gives_the_tokens_of_the_whole_text(
    family: str, first: str, second: str | None, truncate: Direction
) -> None:
    text: Text = first if second is None else (first, second)
    found, whole = read(family, [text], truncate), read(family, [text], truncate, whole=True)
    assert list(map(fields, found)) == list(map(fields, whole))


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none())
def test_of_their_beginnings_the_same_texts_are_too_long(family: str, first: str, second: str | None) -> None:
    text: Text = first if second is None else (first, second)
    count = len(read(family, [text], None, limit=10**6)[0])
    if count <= 16:
        assert len(read(family, ["cat", text], None)[1]) == count
        return
    with pytest.raises(Invalid) as caught:
        read(family, ["cat", text], None)
    assert (caught.value.code, caught.value.index) == ("too_long", 1)
    stated = caught.value.message.removeprefix("input has ").split(" tokens;")[0]
    if stated.startswith("more than "):
        assert 16 <= int(stated.removeprefix("more than ")) < count
    else:
        assert int(stated) == count


class CountingTokenizer:
    """Counts the characters that it tokenizes."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.tokenizer: Any = tokenizer
        self.characters = 0
        self.num_special_tokens_to_add = tokenizer.num_special_tokens_to_add

    def encode(self, *text: str) -> Any:
        self.characters += sum(map(len, text))
        return self.tokenizer.encode(*text)

    def encode_batch(self, inputs: Sequence[Text], **options: Any) -> Any:
        self.characters += sum(count_each(inputs))
        return self.tokenizer.encode_batch(inputs, **options)


@pytest.mark.parametrize("text", ["cat dog " * 100_000, "北京大学" * 100_000, ("cat dog", "cat dog " * 100_000)])
@pytest.mark.parametrize("truncate", ["right", None])
def test_only_the_beginning_of_a_long_text_is_read(text: Text, truncate: Direction | None) -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    counting: Any = CountingTokenizer(tokenizer)
    reader = make_reader(counting, word_ends, [text], truncate, limit=64)
    if truncate is None:
        with pytest.raises(Invalid, match=r"input has more than [0-9]+ tokens; this model takes at most 64"):
            read_all(reader)
    else:
        assert [len(one) for one in read_all(reader)[0]] == [64]
    assert counting.characters < 1000


@given(sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=60), sequences=st.integers(1, 3))
def test_a_chunk_exceeds_its_size_only_for_a_single_text(sizes: list[int], sequences: int) -> None:
    end = next(in_steps(sizes, 0, sequences)).stop
    assert 1 <= end <= len(sizes)
    assert end == 1 or sum(sizes[:end]) <= CHUNK_CHARACTERS
    assert sizes[0] <= CHUNK_CHARACTERS or end == 1


def test_a_text_is_truncated_only_where_more_tokens_follow() -> None:
    """After its last token a text may have more text, or only spaces."""
    for rest, truncated in ((" cat", True), (" ", False)):
        text = "cat " * 13 + "walk" + " " * CHUNK_CHARACTERS + rest
        (one,) = read("bert", [text], "right")
        assert (len(one), one.truncated) == (16, truncated)
        if not truncated:
            assert fields(read("bert", [text], None)[0]) == fields(one)


def test_word_ends_are_unknown_for_a_tokenizer_that_joins_words() -> None:
    """A normalizer without the spaces, SentencePiece models with pieces across spaces, an added token with a space."""
    content, sentence_pieces = (TOKENIZERS[family][0].to_str() for family in ("bert", "xlm-roberta"))
    joining, adding = HFTokenizer.from_str(content), HFTokenizer.from_str(content)
    joining.normalizer = normalizers.Replace(Regex(" "), "")
    adding.add_tokens(["new york"])
    across = sentence_pieces.replace('"WhitespaceSplit"', '"UnicodeScripts"').replace('"split":true', '"split":false')
    for tokenizer in (joining, adding, HFTokenizer.from_str(across)):
        assert find_word_ends(tokenizer) is None


@given(inputs=st.lists(texts, min_size=1, max_size=300), special=st.booleans())
def test_a_chunk_is_the_last_if_no_token_is_expected_after_it(inputs: list[str], special: bool) -> None:
    """Also where all texts are empty and the tokenizer adds no special tokens."""
    tokenizer = HFTokenizer.from_str(TOKENIZERS["bert"][0].to_str())
    if not special:
        tokenizer.post_processor = None
    read = read_chunks(make_reader(tokenizer, TOKENIZERS["bert"][1], inputs, "right"))
    assert max(len(chunk.work) for chunk in read) <= 50, "each counts for 100 characters more than it has"
    assert [owner for chunk in read for owner in chunk.owners] == list(range(len(inputs)))


def test_texts_of_one_kind_are_expected_to_have_their_tokens() -> None:
    for text in ("the cat is a dog ", "北京大学", "unaffable "):
        first, *others = read_chunks(make_reader(*TOKENIZERS["bert"], [text * 20] * 100, None, limit=512))
        assert first.left == pytest.approx(sum(chunk.tokens for chunk in others), rel=0.2)


class FakeThread(Executor):
    """Steps end when `finish` is called, in their order."""

    def __init__(self) -> None:
        self.steps: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.steps.append((future, lambda: work(*args)))
        return future

    async def finish(self) -> None:
        future, work = self.steps.pop(0)
        if future.set_running_or_notify_cancel():
            future.set_result(work())
        await settle()


class Scene:
    def __init__(self) -> None:
        self.thread, self.sums, self.done = FakeThread(), [(0, 0)], list[str]()
        self.turns = Turns(self.thread, lambda *sums: self.sums.append(sums))

    async def request(self, name: str, characters: int, steps: int) -> None:
        for _ in range(steps):
            await self.turns.run(lambda: self.done.append(name), characters, queued=True)

    async def start(self, name: str, characters: int, steps: int = 1) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.request(name, characters, steps))
        await settle()
        return task

    async def finish_all(self) -> list[str]:
        while self.thread.steps:
            await self.thread.finish()
        assert self.sums[-1] == (self.turns.requests, self.turns.characters) == (0, 0)
        return self.done


@on_loop
async def test_requests_take_turns_a_chunk_each() -> None:
    scene = Scene()
    for name, characters, steps in (("large", 5000, 3), ("middle", 2000, 2), ("small", 10, 1)):
        await scene.start(name, characters, steps)
    assert scene.sums[-1] == (3, 5000 + 2000 + 10)
    assert await scene.finish_all() == ["large", "middle", "small", "large", "middle", "large"]


@played
async def test_requests_that_end_early_leave_at_once_and_read_nothing_more(time: FakeTime) -> None:
    scene = Scene()
    running = await scene.start("running", 100, 2)
    waiting = await scene.start("waiting", 50)
    DEADLINE.set(Deadline(5.0))
    late = await scene.start("late", 30)
    DEADLINE.set(Deadline(1000.0))
    await scene.start("other", 80)
    for task, left in ((waiting, (3, 210)), (running, (2, 110))):
        task.cancel()
        await settle()
        assert scene.sums[-1] == left
    with pytest.raises(DeadlineExceeded, match=r"the deadline passed after 5\.000 s, before the texts were"):
        await late
    assert 0 < time.now <= 5.0
    assert scene.sums[-1] == (1, 80)
    assert await scene.finish_all() == ["other"]


@on_loop
async def test_what_no_queue_has_admitted_is_refused_beyond_a_limit() -> None:
    scene = Scene()
    alone = asyncio.create_task(scene.turns.run(lambda: None, 2 * MAX_WAITING))
    await settle()
    with pytest.raises(Overloaded, match=f"{2 * MAX_WAITING} characters wait for the tokenizer, and this") as caught:
        await scene.turns.run(lambda: None, 1)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 30
    await scene.start("admitted", MAX_WAITING)
    assert await scene.finish_all() == ["admitted"]
    await alone
