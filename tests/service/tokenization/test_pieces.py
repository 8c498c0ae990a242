"""A long text in pieces gives what it gives whole, for the tokenizers of all families; only what is needed is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import normalizers

from packbert.service.errors import Invalid
from packbert.service.tokenization import jobs as job_module
from packbert.service.tokenization import jobs as pieces
from packbert.service.tokenization.encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    Text,
    count_characters,
    encode_texts,
)
from packbert.service.tokenization.jobs import PIECE_CHARACTERS, Cuts, EncodingJob
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


def open_family(family: str) -> tuple[HFTokenizer, Cuts]:
    tokenizer = HFTokenizer.from_file(str(GOLDEN / f"{family}-tags" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer, Cuts.of(tokenizer)


TOKENIZERS = {family: open_family(family) for family in FAMILIES}


def make_job(
    tokenizer: HFTokenizer,
    cuts: Cuts,
    inputs: Sequence[Text],
    truncate: Direction | None,
    *,
    limit: int = 16,
    options: EncodeOptions = OPTIONS,
) -> EncodingJob:
    sizes = [count_characters(text) for text in inputs]
    return EncodingJob(tokenizer, cuts, inputs, sizes, options, truncate, limit=limit, mask_id=-1)


def run(job: EncodingJob) -> list[EncodedText]:
    encoded: list[EncodedText] = []
    while not job.done:
        encoded += job.step()
    return encoded


def fields(one: EncodedText) -> tuple[Any, ...]:
    return (one.ids.tolist(), one.types.tolist(), one.spans.tolist(), one.truncated, one.empty, one.pooled_from)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none(), truncate=st.sampled_from(["left", "right"]), size=st.integers(5, 60))
def test_pieces_give_the_tokens_of_the_whole_text(
    family: str, first: str, second: str | None, truncate: Direction, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, cuts = TOKENIZERS[family]
    assert cuts.pattern is not None
    text: Text = first if second is None else (first, second)
    whole = encode_texts(tokenizer, [text], OPTIONS, truncate, limit=16, mask_id=-1)
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", size)
    monkeypatch.setattr(job_module, "PIECE_CHARACTERS", size)
    assert [fields(one) for one in run(make_job(tokenizer, cuts, [text], truncate))] == [fields(one) for one in whole]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=texts, second=texts | st.none(), size=st.integers(5, 60))
def test_in_pieces_the_same_texts_are_too_long(
    family: str, first: str, second: str | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, cuts = TOKENIZERS[family]
    text: Text = first if second is None else (first, second)
    count = len(encode_texts(tokenizer, [text], OPTIONS, None, limit=10**6, mask_id=-1)[0])
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", size)
    monkeypatch.setattr(job_module, "PIECE_CHARACTERS", size)
    job = make_job(tokenizer, cuts, ["cat", text], None)
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


@pytest.mark.parametrize("truncate", ["right", "left", None])
def test_only_as_much_of_a_long_text_is_read_as_can_matter(truncate: Direction | None) -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    plain = EncodeOptions(outputs=frozenset({"cls"}))
    job = make_job(tokenizer, cuts, ["cat dog " * 100_000], truncate, limit=64, options=plain)
    if truncate is None:
        with pytest.raises(Invalid, match=r"input has more than 12.. tokens; this model takes at most 64"):
            job.step()
    else:
        steps = [job.step()]
        while not job.done:
            steps.append(job.step())
        assert [len(one) for step in steps for one in step] == [64]
        assert len(steps) <= 2


def test_no_step_reads_more_than_a_piece_where_the_text_has_words() -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    job = make_job(tokenizer, cuts, ["cat dog " * 5000, "cat " * 200, "cat " * 2000], "left")
    read = []
    while not job.done:
        before = job.left
        job.step()
        read.append(before - job.left)
    assert max(read[:-3]) <= PIECE_CHARACTERS + len(" dog")
    assert sum(read) == 40_000 + 800 + 8000


def test_a_step_reads_a_bounded_number_of_short_texts() -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    job = make_job(tokenizer, cuts, ["cat"] * 1000, "right")
    read = []
    while not job.done:
        read.append(len(job.step()))
    assert max(read) <= 50, "each counts for 100 characters more than it has"
    assert sum(read) == 1000


def test_a_text_is_cut_after_the_room_whatever_its_pieces_end_with() -> None:
    """A piece that ends at exactly the room may have more text after it, or only spaces."""
    tokenizer, cuts = TOKENIZERS["bert"]
    for rest, truncated in ((" cat", True), (" ", False)):
        text = "cat " * 13 + "walk" + " " * PIECE_CHARACTERS + rest  # the first piece ends at "walk"
        (one,) = run(make_job(tokenizer, cuts, [text], "right"))
        assert (len(one), one.truncated) == (16, truncated)
        if not truncated:
            (whole,) = run(make_job(tokenizer, cuts, [text], None))
            assert whole.ids.tolist() == one.ids.tolist()


def test_a_tokenizer_that_changes_where_its_text_is_cut_reads_a_text_at_once() -> None:
    tokenizer = HFTokenizer.from_str(TOKENIZERS["bert"][0].to_str())
    tokenizer.normalizer = normalizers.Prepend("a ")
    assert Cuts.of(tokenizer).pattern is None


def test_a_tokenizer_whose_words_have_no_end_reads_a_text_at_once(tmp_path: Path) -> None:
    """SentencePiece models with pieces across spaces."""
    content = TOKENIZERS["xlm-roberta"][0].to_str().replace('"WhitespaceSplit"', '"UnicodeScripts"')
    file = tmp_path / "tokenizer.json"
    file.write_text(content.replace('"split":true', '"split":false'))
    tokenizer = HFTokenizer.from_file(str(file))
    cuts = Cuts.of(tokenizer)
    assert cuts.pattern is None
    job = make_job(tokenizer, cuts, ["cat dog " * 5000], "right")
    assert len(job.step()[0]) == 16
    assert job.done


def test_an_added_token_with_a_space_in_it_is_not_cut() -> None:
    tokenizer = HFTokenizer.from_str(TOKENIZERS["bert"][0].to_str())
    tokenizer.add_tokens(["new york"])
    assert Cuts.of(tokenizer).pattern is None


@given(inputs=st.lists(texts, min_size=1, max_size=40))
def test_the_expected_tokens_shrink_to_none(inputs: list[str]) -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    job = make_job(tokenizer, cuts, [*inputs], "right")
    job.sample()
    assert 2 * len(inputs) <= job.expected_tokens <= 16 * len(inputs)
    run(job)
    assert job.expected_tokens == job.left == 0


def test_texts_that_are_cut_say_nothing_of_the_tokens_of_others() -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    inputs: list[Text] = [*["cat " * 300] * 40, *["cat cat"] * 400]
    job = make_job(tokenizer, cuts, inputs, "right")
    job.sample()
    while job.position < 40:
        job.step()
    assert job.expected_tokens >= 4 * (440 - job.position)


def test_a_request_with_texts_left_is_expected_to_have_tokens() -> None:
    tokenizer = HFTokenizer.from_str(TOKENIZERS["bert"][0].to_str())
    tokenizer.post_processor = None  # no special tokens
    assert make_job(tokenizer, Cuts(None), [""], "right").expected_tokens == 1


def test_texts_of_one_kind_are_expected_to_have_about_the_tokens_that_they_have() -> None:
    tokenizer, cuts = TOKENIZERS["bert"]
    for text in ("the cat is a dog ", "北京大学", "unaffable "):
        job = make_job(tokenizer, cuts, [text * 20] * 100, None, limit=512)
        job.sample()
        expected = job.expected_tokens
        assert expected == pytest.approx(sum(len(one) for one in run(job)), rel=0.2)
