"""Texts read by their known words: the same ids as from the tokenizers library, which reads all other texts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.artifact import open_artifact
from packbert.service.tokenization import known_words
from packbert.service.tokenization.chunks import TextReader
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions, reading_only
from packbert.service.tokenization.known_words import KnownWords
from tests.service.tokenization.reading import fields

OPTIONS = EncodeOptions(outputs=frozenset({"cls"}), top_k=3)
LIMIT = 64
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=150)


@pytest.fixture(scope="module")
def library(bert_artifact: Path) -> HFTokenizer:
    tokenizer = HFTokenizer.from_file(str(open_artifact(bert_artifact).tokenizer))
    tokenizer.encode_special_tokens = True
    return tokenizer


def words_of(tokenizer: HFTokenizer) -> KnownWords:
    found = KnownWords.of(tokenizer, LIMIT)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def known(library: HFTokenizer) -> KnownWords:
    return words_of(library)


def read(library: HFTokenizer, text: str, *, masks: bool = False, mask_id: int = -1) -> EncodedText:
    """What the library reads, however long it is."""
    options = replace(OPTIONS, masks=masks)
    return TextReader(library, [text], [len(text)], options, 10**6, mask_id).read(1).work[0]


def id_of_mask(tokenizer: HFTokenizer) -> int:
    found = tokenizer.token_to_id("[MASK]")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reading_masks(library: HFTokenizer) -> tuple[KnownWords, HFTokenizer, int]:
    """One that reads masks, the tokenizer that reads them, and the mask's id."""
    mask_id = id_of_mask(library)
    masking = reading_only(library, {mask_id})
    found = words_of(library)
    found.read_masks(masking, mask_id)
    return found, masking, mask_id


WORDS = ["cat", "Dog", "the", "hairy", "42", "x" * 110, "[MASK]", "[mask]", "[MASK", "]", "[CLS]", "##e", ".", " "]


@given(text=PRINTABLE | st.lists(st.sampled_from(WORDS)).map("".join) | st.lists(st.sampled_from(WORDS)).map(" ".join))
@pytest.mark.parametrize("masks", [True, False])
def test_ids_and_fields_are_those_of_the_library_with_masks_and_without(
    reading_masks: tuple[KnownWords, HFTokenizer, int], library: HFTokenizer, masks: bool, text: str
) -> None:
    known, masking, mask_id = reading_masks
    expected = read(masking if masks else library, text, masks=masks, mask_id=mask_id)
    for _ in range(2):  # new words, then known ones
        encoded = known.encode([text], replace(OPTIONS, masks=masks))
        assert (encoded is None) == (len(expected) > LIMIT)
        assert encoded is None or fields(encoded[0]) == fields(expected)


@pytest.mark.parametrize("kind", [{"normalized": True}, {"single_word": True}])
def test_a_mask_that_depends_on_its_neighbours_is_left_to_the_library(
    library: HFTokenizer, kind: dict[str, bool]
) -> None:
    content = json.loads(library.to_str())
    for token in content["added_tokens"]:
        token |= kind if token["content"] == "[MASK]" else {}
    masking = HFTokenizer.from_str(json.dumps(content))
    known = words_of(library)
    known.read_masks(masking, id_of_mask(masking))
    assert known.encode(["a [MASK]"], replace(OPTIONS, masks=True)) is None


@pytest.mark.parametrize("text", ["naïve", "我喜欢", "a\tb", "a\x00b", "\x7f", ("a", "b")])
def test_other_texts_and_all_beside_them_are_left_to_the_library(known: KnownWords, text: Any) -> None:
    assert known.encode(["cat", text], OPTIONS) is None


@pytest.mark.parametrize("options", [{"masks": True}, {"special_tokens": True}, {"spans": True}, {"pooled_from": 1}])
def test_what_it_does_not_know_is_left_to_the_library(known: KnownWords, options: dict[str, Any]) -> None:
    assert known.encode(["cat"], EncodeOptions(outputs=frozenset({"cls"}), **options)) is None


def test_the_number_of_known_words_and_their_length_are_bounded(
    library: HFTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_words, "KNOWN_WORDS", 5)
    known = words_of(library)
    for number in range(50):
        assert known.encode([f"cat w{number} {'x' * 40}{number}"], OPTIONS)
        assert len(known._pieces) <= 5
        assert max(map(len, known._pieces)) <= known_words.LONGEST_KNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": None},
        {"added_tokens": [{"id": 9, "content": "the cat", "special": False}]},
    ],
)
def test_a_tokenizer_that_reads_words_in_another_way_has_none(library: HFTokenizer, change: dict[str, Any]) -> None:
    content = json.loads(library.to_str())
    template = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    if "added_tokens" in change:
        change = {"added_tokens": content["added_tokens"] + [template | one for one in change["added_tokens"]]}
    other = HFTokenizer.from_str(json.dumps(content | change))
    assert KnownWords.of(other, LIMIT) is None


def test_only_a_text_with_an_added_token_is_left_to_the_library(library: HFTokenizer) -> None:
    other = HFTokenizer.from_str(library.to_str())
    other.add_tokens([AddedToken("[E1]", normalized=False), AddedToken("Xyz", normalized=True)])
    other.encode_special_tokens = True
    known = words_of(other)
    for text in ("the [E1]cat", "axyzb"):
        assert known.encode(["cat", text], OPTIONS) is None
    found = known.encode(["cat [E 1] xy z"], OPTIONS)
    assert found is not None
    assert found[0].ids.tolist() == other.encode("cat [E 1] xy z").ids


def test_a_cased_tokenizer_keeps_the_case(library: HFTokenizer) -> None:
    content = json.loads(library.to_str())
    content["normalizer"] |= {"lowercase": False}
    cased = HFTokenizer.from_str(json.dumps(content))
    cased.encode_special_tokens = True
    known = words_of(cased)
    encoded = known.encode(["Cat cat"], OPTIONS)
    assert encoded is not None
    assert encoded[0].ids.tolist() == cased.encode("Cat cat").ids
