"""Windows of a question's context are those of the tokenizers library's truncation of the second text (only_second)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import Invalid, TooLarge
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.windows import QuestionsReader
from tests.export.goldens import Artifact
from tests.service.tokenization.reading import open_tokenizer, read_all

LIMIT = 144
CHARACTERS = st.sampled_from("the cat  walked\n北京 😀 é ( x")
SPANS = EncodeOptions(outputs=frozenset({"spans"}), spans=True)


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "trimmed"])
def tokenizer(exported: Callable[..., Artifact], request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    """`trimmed`: its post-processor takes the space before a token out of its span, but not at a window's start."""
    name = "roberta" if request.param == "trimmed" else request.param
    with open_tokenizer(exported(name).root) as tokenizer:
        if request.param == "trimmed":
            content = tokenizer._plain.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true')
            assert '"add_prefix_space":true' in content
            tokenizer._plain = HFTokenizer.from_str(content)
            tokenizer._plain.encode_special_tokens = True
        yield tokenizer


def windows(
    tokenizer: Tokenizer, *pairs: tuple[str, str], most: int = 10_000, **given: Any
) -> tuple[list[EncodedText], list[int]]:
    stride, given = given.pop("stride", None), {"limit": LIMIT, "question_limit": None, "align_to_words": True} | given
    return read_all(tokenizer.reader(QuestionsReader, pairs, SPANS, most=most, asked_stride=stride, **given))


def rows(sequences: list[EncodedText]) -> list[tuple[list[int], list[int], list[list[int]]]]:
    return [(one.ids.tolist(), one.types.tolist(), one.spans.tolist()) for one in sequences]


def library_rows(
    tokenizer: Tokenizer, pair: tuple[str, str], *, limit: int, stride: int, align: bool
) -> list[tuple[list[int], list[int], list[list[int]]]]:
    library = HFTokenizer.from_str(tokenizer._plain.to_str())
    library.encode_special_tokens = True
    library.enable_truncation(limit, stride=stride, strategy="only_second")
    first, segments = library.encode(*pair), tokenizer.artifact.manifest.sizes["segments"]
    return [
        # without a second segment, the library gives the types 1 in all windows but the first
        (
            one.ids,
            one.type_ids if segments > 1 else [0] * len(one),
            [list(span_of(one, place, align)) for place in range(len(one))],
        )
        for one in [first, *first.overflowing]
    ]


def span_of(encoding: Encoding, place: int, align: bool) -> tuple[int, int]:
    """As QuestionAnsweringPipeline.get_indices."""
    if encoding.sequence_ids[place] != 1:
        return -1, -1
    if not align:
        return encoding.offsets[place]
    word = encoding.token_to_word(place)
    assert word is not None
    return encoding.word_to_chars(word, sequence_index=1) or (-2, -2)


@settings(max_examples=10)
@given(
    question=st.text(CHARACTERS, min_size=1, max_size=20),
    unit=st.text(CHARACTERS, min_size=1, max_size=20),
    stride=st.integers(0, 30),
    limit=st.sampled_from([100, LIMIT]),
    count=st.sampled_from([1, 100, 1500]),
    align=st.booleans(),
)
def test_windows_are_those_of_the_library(
    tokenizer: Tokenizer, question: str, unit: str, stride: int, limit: int, count: int, align: bool
) -> None:
    pair = (f"cat {question}", "cat" + f" {unit}" * count)  # also as more than one piece
    expected = library_rows(tokenizer, pair, limit=limit, stride=stride, align=align)
    found, owners = windows(tokenizer, pair, limit=limit, stride=stride, align_to_words=align)
    assert rows(found) == expected
    assert owners == [0] * len(found)


def test_the_default_stride_is_that_of_the_pipeline(tokenizer: Tokenizer) -> None:
    context = "cat " * 300
    found = windows(tokenizer, ("it", context))[0]
    assert rows(found) == rows(windows(tokenizer, ("it", context), stride=LIMIT // 2)[0])
    words = 35 if tokenizer.artifact.manifest.family == "roberta" else 75  # RoBERTa's "cat" has two tokens
    long = ("cat " * words, context)
    room = int((windows(tokenizer, long)[0][0].spans[:, 0] >= 0).sum())
    assert 0 < room <= LIMIT // 2
    assert rows(windows(tokenizer, long)[0]) == rows(windows(tokenizer, long, stride=room // 2)[0])


def test_a_question_is_cut_only_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    long, short, context = "cat dog sat", "cat", "the mat " * 100
    whole = windows(tokenizer, (long, context))[0]
    kept = len(HFTokenizer.from_str(tokenizer._plain.to_str()).encode(short, add_special_tokens=False))
    cut = windows(tokenizer, (long, context), question_limit=kept)[0]
    assert rows(cut) == rows(windows(tokenizer, (short, context))[0])
    assert rows(windows(tokenizer, (long, context), question_limit=50)[0]) == rows(whole)
    assert sum(one.truncated for one in cut) == 1  # the question, in all windows
    assert not any(one.truncated for one in whole)


@pytest.mark.parametrize("count", [1, 3000])
def test_a_pair_that_cannot_be_read_is_an_error_with_its_index(tokenizer: Tokenizer, count: int) -> None:
    good, long = ("cat", "cat " * count), ("cat " * 200, "cat " * count)
    for pair, code, message in (
        (("", "cat " * count), "empty", "the question has no tokens"),
        (("cat", ""), "empty", "the context has no tokens"),
        (("", ""), "empty", "the question has no tokens"),
        (
            long,
            "too_long",
            r"no room for the context in 144 tokens \(max_seq_len\); shorten it, or send max_question_len",
        ),
    ):
        with pytest.raises(Invalid, match=message) as caught:
            windows(tokenizer, good, pair)
        assert (caught.value.code, caught.value.index) == (code, 1)
    assert windows(tokenizer, long, question_limit=20)[0]


def test_a_stride_without_progress_is_an_error_only_with_windows(tokenizer: Tokenizer) -> None:
    room = int((windows(tokenizer, ("cat", "cat " * 300))[0][0].spans[:, 0] >= 0).sum())
    assert len(windows(tokenizer, ("cat", "cat"), stride=room)[0]) == 1
    assert len(windows(tokenizer, ("cat", "cat " * 300), stride=room - 1)[0]) > 100
    with pytest.raises(Invalid, match=f"doc_stride is {room}; it must be less than {room}: a window holds") as caught:
        windows(tokenizer, ("cat", "cat " * 300), stride=room)
    assert (caught.value.code, caught.value.index) == ("stride", 0)


def test_windows_count_as_inputs_and_too_many_are_refused(tokenizer: Tokenizer) -> None:
    pair = ("cat", "cat " * 300)
    made = len(windows(tokenizer, pair)[0])
    assert len(windows(tokenizer, pair, ("it", "cat"), most=made + 1)[0]) == made + 1
    with pytest.raises(TooLarge, match=rf"at most {made} are allowed \(BERT_MAX_INPUTS\)"):
        windows(tokenizer, pair, ("it", "cat"), most=made)
