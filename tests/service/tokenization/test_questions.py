"""Windows of a question's context are those of the tokenizers library's truncation of the second text (only_second)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, TooLarge
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions
from packbert.service.tokenization.pairs import WindowOptions
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.export.goldens import Artifact

LIMIT = 144
CHARACTERS = st.sampled_from("the cat  walked\n北京 😀 é ( x")
SPANS = EncodeOptions(outputs=frozenset({"spans"}), spans=True)


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "trimmed"])
def tokenizer(exported: Callable[..., Artifact], request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    """`trimmed`: its post-processor takes the space before a token out of its span, but not at a window's start."""
    name = "roberta" if request.param == "trimmed" else request.param
    opened = Tokenizer(open_artifact(exported(name).root), max_characters=100_000)
    opened.open()
    if request.param == "trimmed":
        content = opened._plain.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true')
        assert '"add_prefix_space":true' in content
        opened._plain = HFTokenizer.from_str(content)
        opened._plain.encode_special_tokens = True
    yield opened
    opened.close()


def options(**given: Any) -> WindowOptions:
    defaults = {"limit": LIMIT, "stride": None, "question_limit": None, "align_to_words": True}
    return WindowOptions(**defaults | given)


def windows(
    tokenizer: Tokenizer, *pairs: tuple[str, str], most: int = 10_000, **given: Any
) -> tuple[list[EncodedText], list[int]]:
    job = tokenizer.start_questions(pairs, SPANS, options(**given), most)
    found: list[EncodedText] = []
    while not job.done:
        found += job.step()
    return found, list(job.owners)


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


@settings(max_examples=30)
@given(
    question=st.integers(1, 130),
    context=st.integers(1, 900),
    stride=st.none() | st.integers(0, 100),
    limit=st.integers(20, LIMIT),
    question_limit=st.none() | st.integers(1, 60),
)
def test_the_estimate_is_the_number_of_tokens_where_every_word_has_as_many(
    tokenizer: Tokenizer, question: int, context: int, stride: int | None, limit: int, question_limit: int | None
) -> None:
    asked = options(limit=limit, stride=stride, question_limit=question_limit)
    pairs = [(" cat" * question, " cat" * context)]
    job = tokenizer.start_questions(pairs, SPANS, asked, 10_000)
    whole = len(HFTokenizer.from_str(tokenizer._plain.to_str()).encode(*pairs[0]))
    sizes = np.array([float(whole)])
    counts, tokens = job._expected_windows(sizes)
    try:
        found = job.step()
    except Invalid:
        assume(False)
    assert (counts.tolist(), tokens.tolist()) == ([len(found)], [sum(len(one.ids) for one in found)])


def test_the_default_stride_is_that_of_the_pipeline_where_the_question_leaves_room(tokenizer: Tokenizer) -> None:
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
def test_a_side_without_tokens_is_an_error_with_the_index_of_the_pair(tokenizer: Tokenizer, count: int) -> None:
    good = ("cat", "cat " * count)
    for pair, side in ((("", "cat " * count), "question"), (("cat", ""), "context"), (("", ""), "question")):
        with pytest.raises(Invalid, match=f"the {side} has no tokens") as caught:
            windows(tokenizer, good, pair)
        assert (caught.value.code, caught.value.index) == ("empty", 1)


@pytest.mark.parametrize("count", [1, 3000])
def test_a_question_that_leaves_no_room_is_an_error_that_names_the_way_out(tokenizer: Tokenizer, count: int) -> None:
    pair = ("cat " * 200, "cat " * count)
    with pytest.raises(Invalid, match=r"that leaves no room for the context in 144 tokens \(max_seq_len\)") as caught:
        windows(tokenizer, ("cat", "cat"), pair)
    assert (caught.value.code, caught.value.index) == ("too_long", 1)
    assert "shorten it, or send max_question_len" in caught.value.message
    assert windows(tokenizer, pair, question_limit=20)[0]


def test_a_stride_that_leaves_a_window_nothing_new_is_an_error_only_where_there_are_windows(
    tokenizer: Tokenizer,
) -> None:
    room = int((windows(tokenizer, ("cat", "cat " * 300))[0][0].spans[:, 0] >= 0).sum())
    assert len(windows(tokenizer, ("cat", "cat"), stride=room)[0]) == 1
    assert len(windows(tokenizer, ("cat", "cat " * 300), stride=room - 1)[0]) > 100
    with pytest.raises(Invalid, match=f"doc_stride is {room}; it must be less than {room}: a window holds") as caught:
        windows(tokenizer, ("cat", "cat " * 300), stride=room)
    assert (caught.value.code, caught.value.index) == ("stride", 0)


@pytest.mark.parametrize("count", [300, 3000])
def test_windows_count_as_inputs_and_too_many_are_refused(tokenizer: Tokenizer, count: int) -> None:
    pair = ("cat", "cat " * count)
    made = len(windows(tokenizer, pair)[0])
    assert len(windows(tokenizer, pair, ("it", "cat"), most=made + 1)[0]) == made + 1
    with pytest.raises(TooLarge, match=rf"at most {made} are allowed \(BERT_MAX_INPUTS\)"):
        windows(tokenizer, pair, ("it", "cat"), most=made)
