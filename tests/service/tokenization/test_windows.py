"""Windows of long texts are those of the tokenizers library's own truncation, for every kind of post-processor."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import Invalid, TooLarge
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions, Text
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.windows import WindowsReader
from tests.export.goldens import Artifact
from tests.service.tokenization.reading import encode, open_tokenizer, read_all

SPANS = EncodeOptions(outputs=frozenset({"tags"}), spans=True)
WITHOUT_SPANS = EncodeOptions(outputs=frozenset({"cls"}))
LIMIT, ROOM = 144, 142  # tokens of a window: with and without [CLS] and [SEP]
CHARACTERS = st.sampled_from("the cat  walked\n北京 😀 é ( x")


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta"])
def tokenizer(exported: Callable[..., Artifact], request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
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


@settings(max_examples=20)
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


def test_a_text_within_the_limit_is_one_window(tokenizer: Tokenizer) -> None:
    texts = ["the cat", "a " * 5]
    found = windows(tokenizer, *texts, stride=5)
    assert rows([one for (one,) in found]) == rows(encode(tokenizer, texts, SPANS, None))


@pytest.mark.parametrize("stride", [ROOM, 10_000])
def test_a_stride_without_progress_is_refused_with_the_limit(tokenizer: Tokenizer, stride: int) -> None:
    with pytest.raises(Invalid) as caught:
        windows(tokenizer, "cat", stride=stride)
    assert caught.value.code == "stride"
    assert f"stride is {stride}; it must be less than 142: a window holds 142 tokens" in caught.value.message


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


def test_a_windows_weight_is_what_it_adds(tokenizer: Tokenizer) -> None:
    text = "cat dog 北 " * 150
    added = [one.added for one in windows(tokenizer, text, stride=20, options=WITHOUT_SPANS)[0]]
    bare = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer)).encode(text)
    assert sum(added) == len(bare) - 2
    assert added[0] == ROOM
    assert set(added[1:-1]) == {ROOM - 20}


def test_every_window_begins_with_the_prompt(tokenizer: Tokenizer) -> None:
    prompt, text = "the dog walked", " cat house" * 200
    size = len(windows(tokenizer, prompt)[0][0]) - 2
    whole, *_ = windows(tokenizer, prompt + text, stride=0, options=WITHOUT_SPANS)
    first, *others = windows(tokenizer, prompt + text, stride=10, prompt=size, options=WITHOUT_SPANS)[0]
    assert first.ids.tolist() == whole[0].ids.tolist()
    own = first.ids.tolist()[1 : 1 + size]
    body = first.ids.tolist()[1 + size : -1]
    for window in others:
        ids = window.ids.tolist()
        assert ids[1 : 1 + size] == own
        assert ids[1 + size : 11 + size] == body[-10:]
        body += ids[11 + size : -1]
    assert body == [token for one in whole for token in one.ids.tolist()[1:-1]][size:]


def test_a_prompt_that_fills_the_window_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid, match="the prompt has 142 tokens, which leaves no room for a text in a window of 144"):
        windows(tokenizer, "cat " * 300, stride=None, prompt=ROOM)
    with pytest.raises(Invalid, match="it must be less than 2: a window holds 2 tokens of a text beside its prompt"):
        windows(tokenizer, "cat " * 300, stride=2, prompt=ROOM - 2)


def test_the_default_stride_is_an_eighth_of_the_limit(tokenizer: Tokenizer) -> None:
    text = "cat dog " * 150
    assert rows(windows(tokenizer, text, stride=None)[0]) == rows(windows(tokenizer, text, stride=18)[0])
    room = 7
    default = windows(tokenizer, text, stride=None, prompt=ROOM - room)[0]
    assert rows(default) == rows(windows(tokenizer, text, stride=3, prompt=ROOM - room)[0])


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
