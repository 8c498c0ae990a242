"""Windows of long texts, and of the contexts of questions, are those of the tokenizers library's own truncation."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import Invalid, TooLarge
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions, Text
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.windows import QuestionsReader, WindowsReader
from tests.export.goldens import Exported
from tests.service.tokenization.reading import encode, open_tokenizer, read_all

SPANS = EncodeOptions(outputs=frozenset({"tags"}), spans=True)
LIMIT, ROOM = 144, 142  # tokens of a window: with and without [CLS] and [SEP]
CHARACTERS = st.sampled_from("the cat  walked\n北京 😀 é ( x")


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta"])
def tokenizer(exported: Exported, request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    with open_tokenizer(exported(request.param).root) as tokenizer:
        assert tokenizer.artifact.manifest.max_tokens == LIMIT
        yield tokenizer


@pytest.fixture(scope="module")
def library(tokenizer: Tokenizer) -> HFTokenizer:
    found = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    found.encode_special_tokens = True
    return found


def windows(
    tokenizer: Tokenizer,
    *texts: Text,
    stride: int | None = 0,
    prompt: int = 0,
    most: int = 10_000,
    options: EncodeOptions = SPANS,
) -> list[list[EncodedText]]:
    reader = tokenizer.reader(WindowsReader, texts, options, asked_stride=stride, prompt=prompt, most=most)
    found, owners = read_all(reader)
    of_text: list[list[EncodedText]] = [[] for _ in texts]
    for owner, window in zip(owners, found, strict=True):
        of_text[owner].append(window)
    return of_text


def rows(sequences: Sequence[EncodedText]) -> list[tuple[list[int], list[int], list[list[int]]]]:
    return [(one.ids.tolist(), one.types.tolist(), one.spans.tolist()) for one in sequences]


@settings(max_examples=10)
@given(
    unit=st.text(CHARACTERS, min_size=1, max_size=20),
    stride=st.integers(0, ROOM - 10),
    count=st.sampled_from([300, 2000]),
)
def test_windows_are_those_of_the_library(
    tokenizer: Tokenizer, library: HFTokenizer, unit: str, stride: int, count: int
) -> None:
    joined = "cat" + f" {unit}" * count  # also as more than one piece
    library.enable_truncation(LIMIT, stride=stride)
    first = library.encode(joined)
    expected = []
    for one in [first, *first.overflowing]:
        special = one.special_tokens_mask
        spans = [[-1, -1] if outside else list(span) for outside, span in zip(special, one.offsets, strict=True)]
        expected.append((one.ids, one.type_ids, spans))
    assert rows(windows(tokenizer, joined, stride=stride)[0]) == expected


def test_windows_of_all_texts_count_as_inputs_and_too_many_are_refused(tokenizer: Tokenizer) -> None:
    text = "cat " * (2 * ROOM)
    count = len(windows(tokenizer, text)[0])
    assert len(windows(tokenizer, text, "cat", most=count + 1)) == 2
    with pytest.raises(TooLarge, match=rf"the request has {count + 1} or more windows; at most {count} are allowed"):
        windows(tokenizer, text, "cat", most=count)
    reader = tokenizer.reader(WindowsReader, [text * 2] * 1000, SPANS, asked_stride=0, prompt=0, most=1000)
    with pytest.raises(
        TooLarge, match=r"has about \d+ windows; .*BERT_MAX_INPUTS.: split it, or send a smaller stride"
    ):
        read_all(reader)
    assert reader.position < 10, "the rest is not read"


def test_a_prompt_that_fills_the_window_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid, match="the prompt has 142 tokens, which leaves no room for a text in a window of 144"):
        windows(tokenizer, "cat " * 300, stride=None, prompt=ROOM)
    with pytest.raises(Invalid, match="it must be less than 2: a window holds 2 tokens of a text beside its prompt"):
        windows(tokenizer, "cat " * 300, stride=2, prompt=ROOM - 2)


def test_the_default_stride_is_an_eighth_of_the_limit(tokenizer: Tokenizer) -> None:
    for room, stride in ((ROOM, 18), (7, 3)):
        default, stated = (
            windows(tokenizer, "cat dog " * 150, stride=one, prompt=ROOM - room) for one in (None, stride)
        )
        assert rows(default[0]) == rows(stated[0])


def test_a_pair_is_one_window_or_an_error(tokenizer: Tokenizer) -> None:
    library = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    texts = ("cat" + " cat" * count + end for count in range(LIMIT) for end in ("", ".", ".."))
    largest = next(one for one in texts if len(library.encode(one, "dog").ids) == LIMIT)
    text, *pairs = windows(tokenizer, "cat " * 300, ("cat", "dog"), (largest, "dog"))
    assert len(text) > 1
    assert [rows(own) for own in pairs] == [
        rows(encode(tokenizer, [one], SPANS, None)) for one in (("cat", "dog"), (largest, "dog"))
    ]
    with pytest.raises(Invalid, match=r"input is a pair of [36]0\d tokens; .*and a pair has no windows") as caught:
        windows(tokenizer, "cat", ("cat " * 300, "dog"))
    assert (caught.value.code, caught.value.index) == ("too_long", 1)


OF_CONTEXT = EncodeOptions(outputs=frozenset({"spans"}), spans=True)


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "trimmed"])
def of_questions(exported: Exported, request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    """`trimmed`: its post-processor takes the space before a token out of its span, but not at a window's start."""
    name = "roberta" if request.param == "trimmed" else request.param
    with open_tokenizer(exported(name).root) as tokenizer:
        if request.param == "trimmed":
            content = tokenizer._plain.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true')
            assert '"add_prefix_space":true' in content
            tokenizer._plain = HFTokenizer.from_str(content)
            tokenizer._plain.encode_special_tokens = True
        yield tokenizer


def question_windows(
    of_questions: Tokenizer, *pairs: tuple[str, str], most: int = 10_000, **given: Any
) -> tuple[list[EncodedText], list[int]]:
    stride, given = given.pop("stride", None), {"limit": LIMIT, "question_limit": None, "align_to_words": True} | given
    return read_all(of_questions.reader(QuestionsReader, pairs, OF_CONTEXT, most=most, asked_stride=stride, **given))


def library_rows(
    of_questions: Tokenizer, pair: tuple[str, str], *, limit: int, stride: int, align: bool
) -> list[tuple[list[int], list[int], list[list[int]]]]:
    library = HFTokenizer.from_str(of_questions._plain.to_str())
    library.encode_special_tokens = True
    library.enable_truncation(limit, stride=stride, strategy="only_second")
    first, segments = library.encode(*pair), of_questions.artifact.manifest.sizes["segments"]
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
def test_windows_of_a_question_are_those_of_the_library(
    of_questions: Tokenizer, question: str, unit: str, stride: int, limit: int, count: int, align: bool
) -> None:
    pair = (f"cat {question}", "cat" + f" {unit}" * count)  # also as more than one piece
    expected = library_rows(of_questions, pair, limit=limit, stride=stride, align=align)
    found, owners = question_windows(of_questions, pair, limit=limit, stride=stride, align_to_words=align)
    assert rows(found) == expected
    assert owners == [0] * len(found)


def test_the_default_stride_of_a_question_is_that_of_the_pipeline(of_questions: Tokenizer) -> None:
    context = "cat " * 300
    found = question_windows(of_questions, ("it", context))[0]
    assert rows(found) == rows(question_windows(of_questions, ("it", context), stride=LIMIT // 2)[0])
    words = 35 if of_questions.artifact.manifest.family == "roberta" else 75  # RoBERTa's "cat" has two tokens
    long = ("cat " * words, context)
    room = int((question_windows(of_questions, long)[0][0].spans[:, 0] >= 0).sum())
    assert 0 < room <= LIMIT // 2
    assert rows(question_windows(of_questions, long)[0]) == rows(
        question_windows(of_questions, long, stride=room // 2)[0]
    )


def test_a_question_is_cut_only_where_it_is_asked_for(of_questions: Tokenizer) -> None:
    long, short, context = "cat dog sat", "cat", "the mat " * 100
    whole = question_windows(of_questions, (long, context))[0]
    kept = len(HFTokenizer.from_str(of_questions._plain.to_str()).encode(short, add_special_tokens=False))
    cut = question_windows(of_questions, (long, context), question_limit=kept)[0]
    assert rows(cut) == rows(question_windows(of_questions, (short, context))[0])
    assert rows(question_windows(of_questions, (long, context), question_limit=50)[0]) == rows(whole)
    assert sum(one.truncated for one in cut) == 1  # the question, in all windows
    assert not any(one.truncated for one in whole)


@pytest.mark.parametrize("count", [1, 3000])
def test_a_pair_that_cannot_be_read_is_an_error_with_its_index(of_questions: Tokenizer, count: int) -> None:
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
            question_windows(of_questions, good, pair)
        assert (caught.value.code, caught.value.index) == (code, 1)
    assert question_windows(of_questions, long, question_limit=20)[0]


def test_a_stride_of_a_question_without_progress_is_an_error_only_with_windows(of_questions: Tokenizer) -> None:
    room = int((question_windows(of_questions, ("cat", "cat " * 300))[0][0].spans[:, 0] >= 0).sum())
    assert len(question_windows(of_questions, ("cat", "cat"), stride=room)[0]) == 1
    assert len(question_windows(of_questions, ("cat", "cat " * 300), stride=room - 1)[0]) > 100
    with pytest.raises(Invalid, match=f"doc_stride is {room}; it must be less than {room}: a window holds") as caught:
        question_windows(of_questions, ("cat", "cat " * 300), stride=room)
    assert (caught.value.code, caught.value.index) == ("stride", 0)
