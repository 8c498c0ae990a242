"""Texts to ids, as transformers does it, except that special tokens in a text are text (but the mask in fill-mask)."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from benchmarks.harness.process import ServiceProcess
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid
from packbert.service.tokenization.encoding import (
    INLINE_TEXTS,
    Direction,
    EncodedText,
    EncodeOptions,
    Text,
    longest_first,
)
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.tokens import describe_tokens
from tests.export.goldens import Artifact
from tests.paths import GOLDEN

PLAIN, MASKS = (EncodeOptions(outputs=frozenset({"cls"}), masks=masks) for masks in (False, True))


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    opened = Tokenizer(open_artifact(bert_artifact), max_characters=5000)
    opened.open()
    yield opened
    opened.close()


def encode(tokenizer: Tokenizer, text: Text, cut: Direction | None = None, *, masks: bool = False) -> EncodedText:
    return tokenizer.encode_sync([text], MASKS if masks else PLAIN, cut)[0]


def words(tokenizer: Tokenizer, text: Text, cut: Direction | None = None, *, masks: bool = False) -> list[str]:
    ids = encode(tokenizer, text, cut, masks=masks).ids
    return [str(tokenizer._plain.id_to_token(i)) for i in ids.tolist()]


def test_its_thread_starts_when_it_opens_and_not_with_the_first_long_text(bert_artifact: Path) -> None:
    before = set(threading.enumerate())
    opened = Tokenizer(open_artifact(bert_artifact), max_characters=5000)
    opened.open()
    assert len(set(threading.enumerate()) - before) == 1
    opened.close()


def test_a_model_without_a_mask_token_is_served_and_says_what_its_export_assumed(
    classifier: httpx.Client, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "bert-labels", tmp_path / "checkpoint")
    file, settings = (tmp_path / "checkpoint" / name for name in ("tokenizer.json", "tokenizer_config.json"))
    text = file.read_text("utf-8").replace("[MASK]", "[mask]").replace('"lowercase": true', '"lowercase": false')
    file.write_text(text, "utf-8")
    stated = json.loads(settings.read_text("utf-8"))
    kept = {key: value for key, value in stated.items() if key not in ("mask_token", "do_lower_case")}
    settings.write_text(json.dumps(kept), "utf-8")
    assert "mask" not in export(tmp_path / "checkpoint", tmp_path / "artifact").special_tokens
    body = {"inputs": "the cat sat on the mat."}
    with ServiceProcess({"BERT_ARTIFACT": str(tmp_path / "artifact")}) as service:
        assert httpx.post(f"{service.url}/predict", json=body).json() == classifier.post("/predict", json=body).json()
        assert httpx.post(f"{service.url}/fill-mask", json=body).status_code == 501
        info = httpx.get(f"{service.url}/info").json()
        assert info["mask_token"] == ""
        for what, why in info["assumed"].items():
            assert f"assumes {what}: {why}" in service.output()
        assert info["assumed"]["do_lower_case"].startswith("false, as in tokenizer.json; transformers assumes true")


def test_ids_and_types_are_those_of_transformers(tokenizer: Tokenizer, bert_answers: dict[str, Any]) -> None:
    for case in bert_answers["tokens"]:
        text = case["text"] if case["text_pair"] is None else (case["text"], case["text_pair"])
        for masks in (False, True):
            encoded = encode(tokenizer, text, masks=masks)
            assert encoded.ids.tolist() == case["ids"], text
            assert encoded.types.tolist() == case["types"], text


def test_special_tokens_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "cat [SEP] dog") == ["[CLS]", "cat", "[UNK]", "s", "##e", "##p", "[UNK]", "dog", "[SEP]"]
    assert words(tokenizer, "[CLS] cat").count("[CLS]") == 1
    assert "[MASK]" not in words(tokenizer, "the [MASK]")


def test_for_fill_mask_the_mask_token_is_a_mask_and_other_special_tokens_are_text(tokenizer: Tokenizer) -> None:
    found = words(tokenizer, "[CLS] the [MASK] [SEP]", masks=True)
    assert found.count("[MASK]") == 1
    assert found.count("[CLS]") == found.count("[SEP]") == 1


def test_a_mask_token_in_lower_case_is_text(tokenizer: Tokenizer) -> None:
    assert "[MASK]" not in words(tokenizer, "the [mask]", masks=True)


def test_a_text_with_only_a_mask_is_not_empty(tokenizer: Tokenizer) -> None:
    assert not encode(tokenizer, "[MASK]", masks=True).empty


@pytest.mark.parametrize("text", ["", "  ", "\u200b\u200d", "\x00\x01", ("", "cat"), ("cat", "\u200b"), ("", "")])
def test_a_text_or_a_side_without_tokens_is_empty(tokenizer: Tokenizer, text: Text) -> None:
    assert encode(tokenizer, text).empty


def test_the_error_for_a_text_that_is_too_long_names_its_index_its_tokens_and_the_limit(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid) as caught:
        tokenizer.encode_sync(["cat", "cat " * 600], PLAIN, None)
    assert (caught.value.index, caught.value.code) == (1, "too_long")
    limit = tokenizer.artifact.manifest.max_tokens
    assert f"602 tokens; this model takes at most {limit}" in caught.value.message


def test_texts_of_exactly_the_most_tokens_or_characters_are_not_cut(tokenizer: Tokenizer) -> None:
    limit = tokenizer.artifact.manifest.max_tokens
    encoded = encode(tokenizer, "cat " * (limit - 2))
    assert (len(encoded.ids), encoded.truncated) == (limit, False)
    assert len(asyncio.run(tokenizer.encode(["c" * 5000], PLAIN, "right"))) == 1


def test_truncation_cuts_the_chosen_side_and_is_reported(tokenizer: Tokenizer) -> None:
    limit = tokenizer.artifact.manifest.max_tokens
    text = "cat " * 600 + "dog"
    right = encode(tokenizer, text, "right")
    assert len(right.ids) == limit
    assert right.truncated
    assert "dog" not in words(tokenizer, text, "right")
    left = words(tokenizer, text, "left")
    assert len(left) == limit
    assert left[-2:] == ["dog", "[SEP]"]
    assert left[0] == "[CLS]"


def test_a_truncated_pair_keeps_both_separators(tokenizer: Tokenizer) -> None:
    encoded = encode(tokenizer, ("cat " * 600, "dog"), "right")
    found = words(tokenizer, ("cat " * 600, "dog"), "right")
    assert found.count("[SEP]") == 2
    assert found[-2:] == ["dog", "[SEP]"]
    assert encoded.types.tolist()[-2:] == [1, 1]


@pytest.mark.parametrize(("direction", "ends"), [("right", ["[CLS]", "dog", "cat"]), ("left", ["cat", "dog", "[SEP]"])])
def test_both_sides_of_a_pair_are_cut_on_the_chosen_side_to_the_limit_of_the_model(
    tokenizer: Tokenizer, direction: Direction, ends: list[str]
) -> None:
    side = "dog" + " cat" * 600 + " dog"
    found = words(tokenizer, (side, side), direction)
    assert len(found) == tokenizer.artifact.manifest.max_tokens
    middle = found.index("[SEP]") + 1
    for one in (found[:middle], ["[CLS]", *found[middle:]]):
        assert one.count("dog") == 1
        assert ends == (one[:3] if direction == "right" else one[-3:])


def test_a_long_request_gives_the_same_ids_in_chunks_as_at_once(tokenizer: Tokenizer) -> None:
    texts: list[Text] = [f"cat {'dog ' * (n % 90)}" for n in range(400)]
    at_once = tokenizer.encode_sync(texts, PLAIN, None)
    in_chunks = asyncio.run(tokenizer.encode(texts, PLAIN, None))
    assert [one.ids.tolist() for one in in_chunks] == [one.ids.tolist() for one in at_once]


def test_the_index_in_an_error_counts_from_the_start_of_the_request_not_of_the_chunk(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid) as caught:
        asyncio.run(tokenizer.encode([*(["cat " * 100] * 150), "cat " * 600], PLAIN, None))
    assert caught.value.index == 150


def test_too_many_characters_are_an_error_before_tokenizing(tokenizer: Tokenizer) -> None:
    with pytest.raises(Invalid, match="6000 characters; at most 5000"):
        asyncio.run(tokenizer.encode(["cat", "c" * 6000], PLAIN, "right"))


async def turns_beside(work: Coroutine[Any, Any, object]) -> int:
    """The number of turns of the event loop while `work` runs: one if all of it runs on the loop."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


def test_long_targets_and_long_decoding_do_not_block_the_event_loop(tokenizer: Tokenizer) -> None:
    sequences = [[5] * 400] * 100
    assert asyncio.run(turns_beside(tokenizer.word_ids(["cat dog " * 100] * 5))) > 1
    assert asyncio.run(turns_beside(tokenizer.decode(sequences, skip_special_tokens=True))) > 1
    assert (
        asyncio.run(turns_beside(tokenizer.decode(sequences[:1], skip_special_tokens=True))) == 1
    )  # a short one runs on the loop


def test_many_short_texts_do_not_block_the_event_loop(tokenizer: Tokenizer) -> None:
    """A text takes as long as many characters, even if it has one."""
    for count in (INLINE_TEXTS, INLINE_TEXTS + 1):
        few = count == INLINE_TEXTS
        for work in (
            tokenizer.encode(["a"] * count, MASKS, None),
            tokenizer.word_ids(["a"] * count),
            tokenizer.decode([[5]] * count, skip_special_tokens=True),
            describe_tokens(tokenizer, ["a"] * count, add_special_tokens=True),
        ):
            assert (asyncio.run(turns_beside(work)) == 1) == few


def test_one_long_text_does_not_block_the_event_loop(tokenizer: Tokenizer) -> None:
    """Its thread releases the GIL: otherwise the loop would turn only some dozen times."""
    patient = Tokenizer(tokenizer.artifact, max_characters=100_000)
    patient.open()
    assert max(asyncio.run(turns_beside(patient.encode(["cat" + " " * 99_000], PLAIN, None))) for _ in range(5)) > 1000
    patient.close()


def test_decoding_in_chunks_gives_the_same_texts_as_one_by_one(tokenizer: Tokenizer) -> None:
    sequences = [[n % 90 + 5] * (n % 300) for n in range(400)]
    alone = [tokenizer._plain.decode(ids, skip_special_tokens=True) for ids in sequences]
    assert asyncio.run(tokenizer.decode(sequences, skip_special_tokens=True)) == alone


@pytest.fixture(scope="module", params=["bert", "roberta"])
def of_decoder(request: pytest.FixtureRequest, exported: Callable[..., Artifact]) -> Iterator[Tokenizer]:
    """Tokenizers whose decoder gives each token a text of its own, and whose decoder does not."""
    opened = Tokenizer(open_artifact(exported(request.param).root), max_characters=5000)
    opened.open()
    yield opened
    opened.close()


IDS = st.lists(st.integers(0, 89), max_size=5)


@given(before=IDS, fillings=st.lists(IDS, max_size=3), after=IDS, skip=st.booleans())
def test_a_filled_text_is_that_of_all_its_ids(
    of_decoder: Tokenizer, before: list[int], fillings: list[list[int]], after: list[int], skip: bool
) -> None:
    found = of_decoder.decode_filled(before, fillings, after, skip_special_tokens=skip)
    whole = of_decoder.decode([[*before, *ids, *after] for ids in fillings], skip_special_tokens=skip)
    assert asyncio.run(found) == asyncio.run(whole)


@given(first=st.integers(1, 40), second=st.integers(1, 40), room=st.integers(2, 60))
def test_pairs_are_truncated_longest_first_as_the_tokenizers_library_does(
    tokenizer: Tokenizer, first: int, second: int, room: int
) -> None:
    library = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    library.enable_truncation(room + 3, strategy="longest_first")
    ids = library.encode("cat " * first, "dog " * second).ids
    kept = tuple(ids.count(library.token_to_id(word) or 0) for word in ("cat", "dog"))
    assert longest_first(first, second, room) == kept


@given(st.text(max_size=200))
def test_any_text_gives_one_cls_one_sep_and_ids_of_the_vocabulary(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    found = encode(tokenizer, text, "right").ids.tolist()
    special = tokenizer.artifact.manifest.special_tokens
    assert found[0] == special["cls"]
    assert found[-1] == special["sep"]
    assert {special["cls"], special["sep"], special["mask"]}.isdisjoint(found[1:-1])
    assert max(found) < tokenizer.artifact.manifest.sizes["vocabulary"]
