"""Windows of long texts are those of the tokenizers library's own truncation, for every kind of post-processor."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from service.artifact import open_artifact
from service.errors import Invalid, TooLarge
from service.tokenization.encoding import EncodedText, EncodeOptions
from service.tokenization.tokenizer import Tokenizer
from tests.export.goldens import Artifact

SPANS = EncodeOptions(outputs=frozenset({"tags"}), spans=True)
WITHOUT_SPANS = EncodeOptions(outputs=frozenset({"cls"}))
LIMIT, ROOM = 144, 142  # tokens of a window: with and without [CLS] and [SEP]
CHARACTERS = st.sampled_from("the cat  walked\n北京 😀 é ( x")


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta"])
def tokenizer(exported: Callable[..., Artifact], request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    opened = Tokenizer(open_artifact(exported(request.param).root), max_characters=100_000)
    opened.open()
    assert opened.artifact.manifest.max_tokens == LIMIT
    yield opened
    opened.close()


def windows(
    tokenizer: Tokenizer,
    *texts: str,
    stride: int | None = 0,
    prompt: int = 0,
    most: int = 10_000,
    options: EncodeOptions = SPANS,
) -> list[list[EncodedText]]:
    job = tokenizer.start_windows(texts, options, stride=stride, prompt=prompt, most=most)
    found: list[EncodedText] = []
    while not job.done:
        found += job.step()
    assert list(job.owners) == sorted(job.owners)
    assert len(job.added) == len(found)
    of_text: list[list[EncodedText]] = [[] for _ in texts]
    for owner, window in zip(job.owners, found, strict=True):
        of_text[owner].append(window)
    return of_text


def rows(sequences: list[EncodedText]) -> list[tuple[list[int], list[int], list[list[int]]]]:
    return [(one.ids.tolist(), one.types.tolist(), one.spans.tolist()) for one in sequences]


@settings(max_examples=20)
@given(
    unit=st.text(CHARACTERS, min_size=1, max_size=20),
    stride=st.integers(0, ROOM - 10),
    count=st.sampled_from([300, 2000]),
)
def test_windows_are_those_of_the_library(tokenizer: Tokenizer, unit: str, stride: int, count: int) -> None:
    joined = "cat" + f" {unit}" * count  # also as more than one piece
    library = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    library.encode_special_tokens = True
    library.enable_truncation(LIMIT, stride=stride)
    first = library.encode(joined)
    expected = []
    for one in [first, *first.overflowing]:
        special = one.special_tokens_mask
        spans = [[-1, -1] if outside else list(span) for outside, span in zip(special, one.offsets, strict=True)]
        expected.append((one.ids, one.type_ids, spans))
    assert rows(windows(tokenizer, joined, stride=stride)[0]) == expected


def test_a_text_within_the_limit_is_one_window_as_it_is_encoded_alone(tokenizer: Tokenizer) -> None:
    texts = ["the cat", "a " * 5]
    found = windows(tokenizer, *texts, stride=5)
    assert rows([one for (one,) in found]) == rows(tokenizer.encode_sync(texts, SPANS, None))


def test_windows_share_as_many_tokens_as_stride_says_and_none_is_lost_or_truncated(tokenizer: Tokenizer) -> None:
    text = "cat dog 北 " * 150
    found = windows(tokenizer, text, stride=20, options=WITHOUT_SPANS)[0]
    own = [one.ids.tolist()[1:-1] for one in found]
    assert all(before[-20:] == after[:20] for before, after in pairwise(own))
    assert not any(one.truncated or one.spans.size for one in found)
    joined = own[0] + [token for one in own[1:] for token in one[20:]]
    bare = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer)).encode(text, add_special_tokens=False)
    assert joined == bare.ids


@pytest.mark.parametrize("stride", [ROOM, 10_000])
def test_a_stride_that_leaves_a_window_nothing_new_is_refused_with_the_limit(tokenizer: Tokenizer, stride: int) -> None:
    with pytest.raises(Invalid) as caught:
        windows(tokenizer, "cat", stride=stride)
    assert caught.value.code == "stride"
    assert f"stride is {stride}; it must be less than 142: a window holds 142 tokens" in caught.value.message


def test_windows_of_all_texts_count_as_inputs_and_too_many_are_refused(tokenizer: Tokenizer) -> None:
    text = "cat " * (2 * ROOM)
    count = len(windows(tokenizer, text)[0])
    assert len(windows(tokenizer, text, "cat", most=count + 1)) == 2
    with pytest.raises(TooLarge, match=rf"the request has about {count + 1} windows; at most {count} are allowed"):
        windows(tokenizer, text, "cat", most=count)
