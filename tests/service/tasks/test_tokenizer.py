"""Text to ids: as transformers does it, except that only the mask may mean anything in a user's text."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from service.artifact import open_artifact
from service.errors import Invalid
from service.tasks.tokenizer import PORTION_CHARACTERS, Direction, Text, Tokenizer, Truncation, longest_first, portions

KEEP, TRUNCATE = Truncation(truncate=False), Truncation(truncate=True)


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    opened = Tokenizer(open_artifact(bert_artifact), max_characters=5000)
    opened.open()
    yield opened
    opened.close()


def words(tokenizer: Tokenizer, text: Text, cut: Truncation = KEEP, *, masks: bool = False) -> list[str]:
    ids = tokenizer.encode_sync([text], cut, masks=masks)[0].ids
    return [tokenizer._plain.id_to_token(i) for i in ids.tolist()]


def test_ids_and_types_are_those_of_transformers(tokenizer: Tokenizer, bert_answers: dict[str, Any]) -> None:
    for case in bert_answers["tokens"]:
        text = case["text"] if case["text_pair"] is None else (case["text"], case["text_pair"])
        for masks in (False, True):
            encoded = tokenizer.encode_sync([text], KEEP, masks=masks)[0]
            assert encoded.ids.tolist() == case["ids"], text
            assert encoded.types.tolist() == case["types"], text


def test_special_tokens_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "cat [SEP] dog") == ["[CLS]", "cat", "[UNK]", "s", "##e", "##p", "[UNK]", "dog", "[SEP]"]
    assert words(tokenizer, "[CLS] cat").count("[CLS]") == 1
    assert "[MASK]" not in words(tokenizer, "the [MASK]")


def test_in_fill_mask_the_mask_is_a_mask_and_the_rest_stays_text(tokenizer: Tokenizer) -> None:
    found = words(tokenizer, "[CLS] the [MASK] [SEP]", masks=True)
    assert found.count("[MASK]") == 1
    assert found.count("[CLS]") == found.count("[SEP]") == 1


def test_a_mask_in_lower_case_is_text(tokenizer: Tokenizer) -> None:
    assert "[MASK]" not in words(tokenizer, "the [mask]", masks=True)


def test_a_text_of_only_a_mask_is_not_empty(tokenizer: Tokenizer) -> None:
    assert not tokenizer.encode_sync(["[MASK]"], KEEP, masks=True)[0].empty


@pytest.mark.parametrize("text", ["", "  ", "\u200b\u200d", "\x00\x01", ("", "cat"), ("cat", "\u200b"), ("", "")])
def test_a_text_or_a_side_without_tokens_is_empty(tokenizer: Tokenizer, text: Text) -> None:
    assert tokenizer.encode_sync([text], KEEP)[0].empty


def test_too_long_without_truncation_names_the_item_its_tokens_and_the_limit(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid) as caught:
        tokenizer.encode_sync(["cat", "cat " * 600], KEEP)
    assert (caught.value.index, caught.value.code) == (1, "too_long")
    limit = tokenizer.artifact.manifest.max_tokens
    assert f"602 tokens; this model takes at most {limit}" in caught.value.message


def test_a_text_that_just_fits_is_taken_whole_in_tokens_and_in_characters(tokenizer: Tokenizer) -> None:
    limit = tokenizer.artifact.manifest.max_tokens
    encoded = tokenizer.encode_sync(["cat " * (limit - 2)], KEEP)[0]
    assert (len(encoded.ids), encoded.truncated) == (limit, False)
    assert len(asyncio.run(tokenizer.encode(["c" * 5000], TRUNCATE))) == 1


def test_truncation_keeps_the_chosen_end_and_says_so(tokenizer: Tokenizer) -> None:
    limit = tokenizer.artifact.manifest.max_tokens
    text = "cat " * 600 + "dog"
    right = tokenizer.encode_sync([text], TRUNCATE)[0]
    assert len(right.ids) == limit
    assert right.truncated
    assert "dog" not in words(tokenizer, text, TRUNCATE)
    left = words(tokenizer, text, Truncation(truncate=True, direction="left"))
    assert len(left) == limit
    assert left[-2:] == ["dog", "[SEP]"]
    assert left[0] == "[CLS]"


def test_a_pair_that_is_cut_keeps_both_separators(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode_sync([("cat " * 600, "dog")], TRUNCATE)[0]
    found = words(tokenizer, ("cat " * 600, "dog"), TRUNCATE)
    assert found.count("[SEP]") == 2
    assert found[-2:] == ["dog", "[SEP]"]
    assert encoded.types.tolist()[-2:] == [1, 1]


@pytest.mark.parametrize(("direction", "ends"), [("right", ["[CLS]", "dog", "cat"]), ("left", ["cat", "dog", "[SEP]"])])
def test_both_sides_of_a_pair_are_cut_at_the_chosen_end_and_fill_the_model(
    tokenizer: Tokenizer, direction: Direction, ends: list[str]
) -> None:
    side = "dog" + " cat" * 600 + " dog"
    found = words(tokenizer, (side, side), Truncation(truncate=True, direction=direction))
    assert len(found) == tokenizer.artifact.manifest.max_tokens
    middle = found.index("[SEP]") + 1
    for one in (found[:middle], ["[CLS]", *found[middle:]]):
        assert one.count("dog") == 1
        assert ends == (one[:3] if direction == "right" else one[-3:])


@given(sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=50))
def test_portions_hold_every_text_once_in_order_and_little_more_than_one_long_text(sizes: list[int]) -> None:
    parts = portions(sizes)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(sizes)))
    assert all(sum(sizes[part]) <= PORTION_CHARACTERS or sum(size > 0 for size in sizes[part]) == 1 for part in parts)


def test_a_long_request_is_encoded_in_portions_as_it_is_in_one(tokenizer: Tokenizer) -> None:
    texts: list[Text] = [f"cat {'dog ' * (n % 90)}" for n in range(400)]
    all_cores = tokenizer.encode_sync(texts, KEEP)
    parts = asyncio.run(tokenizer.encode(texts, KEEP))
    assert [one.ids.tolist() for one in parts] == [one.ids.tolist() for one in all_cores]


def test_the_index_of_a_text_that_is_too_long_counts_from_the_start_of_its_request(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid) as caught:
        asyncio.run(tokenizer.encode([*(["cat " * 100] * 150), "cat " * 600], KEEP))
    assert caught.value.index == 150


def test_too_many_characters_are_refused_before_tokenizing(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid, match="6000 characters; at most 5000"):
        asyncio.run(tokenizer.encode(["cat", "c" * 6000], TRUNCATE))


async def turns_beside(work: Coroutine[Any, Any, object]) -> int:
    """How often the loop turns while `work` is done: once where nothing of it is done elsewhere."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


def test_long_targets_and_long_answers_leave_the_loop_free(tokenizer: Tokenizer) -> None:
    sequences = [[5] * 400] * 100
    assert asyncio.run(turns_beside(tokenizer.first_ids(["cat dog " * 100] * 5))) > 1
    assert asyncio.run(turns_beside(tokenizer.decode(sequences, skip_special_tokens=True))) > 1
    assert (
        asyncio.run(turns_beside(tokenizer.decode(sequences[:1], skip_special_tokens=True))) == 1
    )  # a short one is not worth the way


def test_one_long_text_leaves_the_loop_free(tokenizer: Tokenizer) -> None:
    """It is done elsewhere, and without the interpreter's lock: with it, the loop would turn some dozen times."""
    patient = Tokenizer(tokenizer.artifact, max_characters=100_000)
    patient.open()
    assert max(asyncio.run(turns_beside(patient.encode(["cat" + " " * 99_000], KEEP))) for _ in range(5)) > 1000
    patient.close()


def test_long_answers_become_text_in_portions_as_short_ones_do(tokenizer: Tokenizer) -> None:
    sequences = [[n % 90 + 5] * (n % 300) for n in range(400)]
    alone = [tokenizer._plain.decode(ids, skip_special_tokens=True) for ids in sequences]
    assert asyncio.run(tokenizer.decode(sequences, skip_special_tokens=True)) == alone


@given(first=st.integers(1, 40), second=st.integers(1, 40), room=st.integers(2, 60))
def test_pairs_are_cut_longest_first_as_the_library_does(
    tokenizer: Tokenizer, first: int, second: int, room: int
) -> None:
    library = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    library.enable_truncation(room + 3, strategy="longest_first")
    ids = library.encode("cat " * first, "dog " * second).ids
    kept = tuple(ids.count(library.token_to_id(word)) for word in ("cat", "dog"))
    assert longest_first(first, second, room) == kept


@given(st.text(max_size=200))
def test_any_text_gives_one_cls_one_sep_and_valid_ids(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    found = tokenizer.encode_sync([text], TRUNCATE)[0].ids.tolist()
    special = tokenizer.artifact.manifest.special_tokens
    assert found[0] == special["cls"]
    assert found[-1] == special["sep"]
    assert {special["cls"], special["sep"], special["mask"]}.isdisjoint(found[1:-1])
    assert max(found) < tokenizer.artifact.manifest.sizes["vocabulary"]
