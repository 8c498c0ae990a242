"""Steps from texts to sequences: the beginning of a long text gives what the whole gives, for every tokenizer."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import Invalid
from packbert.service.tokenization import jobs
from packbert.service.tokenization.encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    Text,
    count_characters,
    encode_texts,
)
from packbert.service.tokenization.jobs import CHUNK_CHARACTERS, EncodingJob, chunk_end, find_word_ends
from tests.paths import GOLDEN

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


def make_job(
    tokenizer: HFTokenizer,
    word_ends: re.Pattern[str] | None,
    inputs: Sequence[Text],
    truncate: Direction | None,
    *,
    limit: int = 16,
    options: EncodeOptions = OPTIONS,
) -> EncodingJob:
    sizes = [count_characters(text) for text in inputs]
    return EncodingJob(tokenizer, inputs, sizes, options, limit, -1, truncate, word_ends)


def run(job: EncodingJob) -> list[EncodedText]:
    encoded: list[EncodedText] = []
    while not job.done:
        encoded += job.step()
    return encoded


def fields(one: EncodedText) -> tuple[Any, ...]:
    return (one.ids.tolist(), one.types.tolist(), one.spans.tolist(), one.truncated, one.empty, one.pooled_from)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of some words are long ones, whose beginnings are read from 16 characters on."""
    monkeypatch.setattr(jobs, "CHUNK_CHARACTERS", 10)
    monkeypatch.setattr(jobs, "BEGINNING_CHARACTERS_PER_TOKEN", 1)


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none(), truncate=st.sampled_from(["left", "right"]))
@example(first="unaffable " * 40, second="!?" * 10, truncate="right")  # at first the side that is cut has fewer tokens
@example(first="!?" * 10, second="unaffable " * 40, truncate="right")
def test_the_beginning_of_a_text_gives_the_tokens_of_the_whole_text(
    family: str, first: str, second: str | None, truncate: Direction
) -> None:
    tokenizer, word_ends = TOKENIZERS[family]
    assert word_ends is not None
    text: Text = first if second is None else (first, second)
    whole = encode_texts(tokenizer, [text], OPTIONS, truncate, limit=16, mask_id=-1)
    found = run(make_job(tokenizer, word_ends, [text], truncate))
    assert [fields(one) for one in found] == [fields(one) for one in whole]


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none())
def test_of_their_beginnings_the_same_texts_are_too_long(family: str, first: str, second: str | None) -> None:
    tokenizer, word_ends = TOKENIZERS[family]
    text: Text = first if second is None else (first, second)
    count = len(encode_texts(tokenizer, [text], OPTIONS, None, limit=10**6, mask_id=-1)[0])
    job = make_job(tokenizer, word_ends, ["cat", text], None)
    if count <= 16:
        assert len(run(job)[1]) == count
        return
    with pytest.raises(Invalid) as caught:
        run(job)
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
        self.characters += sum(map(count_characters, inputs))
        return self.tokenizer.encode_batch(inputs, **options)


@pytest.mark.parametrize("text", ["cat dog " * 100_000, "北京大学" * 100_000, ("cat dog", "cat dog " * 100_000)])
@pytest.mark.parametrize("truncate", ["right", None])
def test_only_the_beginning_of_a_long_text_is_read_where_the_rest_is_cut_or_too_long(
    text: Text, truncate: Direction | None
) -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    counting: Any = CountingTokenizer(tokenizer)
    job = make_job(counting, word_ends, [text], truncate, limit=64, options=EncodeOptions(outputs=frozenset({"cls"})))
    if truncate is None:
        with pytest.raises(Invalid, match=r"input has more than [0-9]+ tokens; this model takes at most 64"):
            run(job)
    else:
        assert [len(one) for one in run(job)] == [64]
    assert counting.characters < 1000


@given(sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=60), sequences=st.integers(1, 3))
def test_a_chunk_has_a_text_and_exceeds_its_size_only_for_a_single_one(sizes: list[int], sequences: int) -> None:
    end = chunk_end(sizes, 0, sequences)
    assert 1 <= end <= len(sizes)
    assert end == 1 or sum(sizes[:end]) <= CHUNK_CHARACTERS
    assert sizes[0] <= CHUNK_CHARACTERS or end == 1


def test_a_step_reads_a_bounded_number_of_short_texts() -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    job = make_job(tokenizer, word_ends, ["cat"] * 1000, "right")
    read = []
    while not job.done:
        read.append(len(job.step()))
    assert max(read) <= 50, "each counts for 100 characters more than it has"
    assert sum(read) == 1000


def test_a_text_is_truncated_only_where_more_tokens_follow() -> None:
    """After its last token a text may have more text, or only spaces."""
    tokenizer, word_ends = TOKENIZERS["bert"]
    for rest, truncated in ((" cat", True), (" ", False)):
        text = "cat " * 13 + "walk" + " " * CHUNK_CHARACTERS + rest
        (one,) = run(make_job(tokenizer, word_ends, [text], "right"))
        assert (len(one), one.truncated) == (16, truncated)
        if not truncated:
            (whole,) = run(make_job(tokenizer, word_ends, [text], None))
            assert whole.ids.tolist() == one.ids.tolist()


def test_word_ends_are_unknown_for_a_tokenizer_that_joins_words() -> None:
    """A normalizer without the spaces, SentencePiece models with pieces across spaces, an added token with a space."""
    content, sentence_pieces = (TOKENIZERS[family][0].to_str() for family in ("bert", "xlm-roberta"))
    joining, adding = HFTokenizer.from_str(content), HFTokenizer.from_str(content)
    joining.normalizer = normalizers.Replace(Regex(" "), "")
    adding.add_tokens(["new york"])
    across = sentence_pieces.replace('"WhitespaceSplit"', '"UnicodeScripts"').replace('"split":true', '"split":false')
    for tokenizer in (joining, adding, HFTokenizer.from_str(across)):
        assert find_word_ends(tokenizer) is None


def test_without_word_ends_a_long_text_is_read_as_a_whole() -> None:
    tokenizer, _ = TOKENIZERS["xlm-roberta"]
    job = make_job(tokenizer, None, ["cat dog " * 5000], "right")
    assert len(job.step()[0]) == 16
    assert job.done


@given(inputs=st.lists(texts, min_size=1, max_size=40))
def test_the_expected_tokens_shrink_to_none(inputs: list[str]) -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    job = make_job(tokenizer, word_ends, [*inputs], "right")
    job.sample()
    assert 2 * len(inputs) <= job.expected_tokens <= 16 * len(inputs)
    run(job)
    assert job.expected_tokens == job.left == 0


def test_texts_that_are_cut_say_nothing_of_the_tokens_of_others() -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    inputs: list[Text] = [*["cat " * 300] * 40, *["cat cat"] * 400]
    job = make_job(tokenizer, word_ends, inputs, "right")
    job.sample()
    while job.position < 40:
        job.step()
    assert job.expected_tokens == pytest.approx(4 * (440 - job.position), rel=0.1)


def test_a_request_with_texts_left_is_expected_to_have_tokens() -> None:
    tokenizer = HFTokenizer.from_str(TOKENIZERS["bert"][0].to_str())
    tokenizer.post_processor = None  # no special tokens
    assert make_job(tokenizer, None, [""], "right").expected_tokens == 1


def test_texts_of_one_kind_are_expected_to_have_about_the_tokens_that_they_have() -> None:
    tokenizer, word_ends = TOKENIZERS["bert"]
    for text in ("the cat is a dog ", "北京大学", "unaffable "):
        job = make_job(tokenizer, word_ends, [text * 20] * 100, None, limit=512)
        job.sample()
        expected = job.expected_tokens
        assert expected == pytest.approx(sum(len(one) for one in run(job)), rel=0.2)
