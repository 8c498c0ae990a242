"""Texts to ids, as transformers does it, except that special tokens in a text are text (but the mask in fill-mask)."""

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.manifest import TOKENIZER
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, TokenizerFailed
from packbert.service.tokenization.chunks import TextReader
from packbert.service.tokenization.encoding import Direction, EncodedText, EncodeOptions, Text, guard
from packbert.service.tokenization.tokenizer import INLINE_TEXTS, Tokenizer
from tests.export.goldens import Exported
from tests.paths import GOLDEN
from tests.service.engine.changed_files import with_own_digests
from tests.service.in_process import serve_in_process
from tests.service.tokenization.reading import encode as encode_all
from tests.service.tokenization.reading import open_tokenizer

PLAIN, MASKS = (EncodeOptions(outputs=frozenset({"cls"}), masks=masks) for masks in (False, True))


@pytest.fixture(scope="module")
def tokenizer(bert_artifact: Path) -> Iterator[Tokenizer]:
    with open_tokenizer(bert_artifact, 5000) as tokenizer:
        yield tokenizer


@pytest.fixture(scope="module")
def library(tokenizer: Tokenizer) -> HFTokenizer:
    return HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))


def encode(tokenizer: Tokenizer, text: Text, cut: Direction | None = None, *, masks: bool = False) -> EncodedText:
    return encode_all(tokenizer, [text], MASKS if masks else PLAIN, cut)[0]


def words(tokenizer: Tokenizer, text: Text, cut: Direction | None = None, *, masks: bool = False) -> list[str]:
    ids = encode(tokenizer, text, cut, masks=masks).ids
    return [str(tokenizer._plain.id_to_token(i)) for i in ids.tolist()]


def test_a_model_without_a_mask_token_is_served(classifier: httpx.Client, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "bert-labels", tmp_path / "checkpoint")
    file, settings = (tmp_path / "checkpoint" / name for name in ("tokenizer.json", "tokenizer_config.json"))
    text = file.read_text("utf-8").replace("[MASK]", "[mask]").replace('"lowercase": true', '"lowercase": false')
    file.write_text(text, "utf-8")
    stated = json.loads(settings.read_text("utf-8"))
    kept = {key: value for key, value in stated.items() if key not in ("mask_token", "do_lower_case")}
    settings.write_text(json.dumps(kept), "utf-8")
    assert "mask" not in export(tmp_path / "checkpoint", tmp_path / "artifact").special_tokens
    body = {"inputs": "the cat sat on the mat."}
    with serve_in_process(tmp_path / "artifact") as service:
        assert service.post("/predict", json=body).json() == classifier.post("/predict", json=body).json()
        assert service.post("/fill-mask", json=body).status_code == 501
        assumed = service.backend.artifact.manifest.assumed
    assert assumed["do_lower_case"].startswith("false, as in tokenizer.json; transformers assumes true")


def test_special_tokens_in_a_text_are_text_but_for_the_mask(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "cat [SEP] dog") == ["[CLS]", "cat", "[UNK]", "s", "##e", "##p", "[UNK]", "dog", "[SEP]"]
    for masks in (False, True):
        found = words(tokenizer, "[CLS] the [MASK] [mask] [SEP]", masks=masks)
        assert [found.count(one) for one in ("[CLS]", "[MASK]", "[SEP]")] == [1, int(masks), 1]
    assert not encode(tokenizer, "[MASK]", masks=True).empty


@pytest.mark.parametrize("text", ["", "  ", "\u200b\u200d", "\x00\x01", ("", "cat"), ("cat", "\u200b"), ("", "")])
def test_a_text_or_a_side_without_tokens_is_empty(tokenizer: Tokenizer, text: Text) -> None:
    assert encode(tokenizer, text).empty


def test_errors_of_a_text_have_its_index_and_the_limit(tokenizer: Tokenizer) -> None:
    limit = tokenizer.artifact.manifest.max_tokens
    for before in (["cat"], ["cat " * 100] * 150):  # at once, in chunks
        with pytest.raises(Invalid, match=f"602 tokens; this model takes at most {limit}") as caught:
            encode_all(tokenizer, [*before, "cat " * 600], PLAIN, None)
        assert (caught.value.index, caught.value.code) == (len(before), "too_long")
    with pytest.raises(Invalid, match="6000 characters; at most 5000") as caught:
        encode_all(tokenizer, ["cat", "c" * 6000], PLAIN, "right")
    assert caught.value.index == 1
    assert len(encode(tokenizer, "c" * 5000, "right").ids) <= limit


@given(
    first=st.integers(1, 120),
    second=st.none() | st.integers(1, 120),
    limit=st.integers(5, 60),
    direction=st.sampled_from(["left", "right"]),
)
def test_texts_and_pairs_are_cut_as_the_tokenizers_library_cuts_them(
    library: HFTokenizer, first: int, second: int | None, limit: int, direction: Direction
) -> None:
    sides = [" ".join(["dog", *["cat"] * size, "walked"]) for size in (first, second) if size is not None]
    text: Text = sides[0] if second is None else (sides[0], sides[1])
    library.no_truncation()
    reader = TextReader(library, [text], [sum(map(len, sides))], PLAIN, limit, -1, direction)
    (found,) = reader.read(1).work
    library.enable_truncation(limit, direction=direction)
    expected = library.encode(sides[0], sides[1] if second is not None else None)
    assert (found.ids.tolist(), found.types.tolist()) == (expected.ids, expected.type_ids)
    assert found.truncated == bool(expected.overflowing)


async def turns_beside(work: Coroutine[Any, Any, object]) -> int:
    """The number of turns of the event loop while `work` runs: one if all of it runs on the loop."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


@pytest.mark.parametrize("few", [True, False])
def test_only_short_work_runs_on_the_event_loop(tokenizer: Tokenizer, few: bool) -> None:
    """A text takes as long as many characters, even if it has one."""
    count, tokens, words = (
        (INLINE_TEXTS, [[5] * 400], "cat " * 200) if few else (INLINE_TEXTS + 1, [[5] * 600], "c" * 1001)
    )
    for work in (
        tokenizer.encode(["a"] * count, MASKS, None),
        tokenizer.word_ids(["a"] * count),
        tokenizer.word_ids([words]),
        tokenizer.decode([[5]] * count, skip_special_tokens=True),
        tokenizer.decode(tokens, skip_special_tokens=True),
        tokenizer.read(["a"] * count, PLAIN, len),
    ):
        assert (asyncio.run(turns_beside(work)) == 1) == few


def test_one_long_text_does_not_block_the_event_loop(tokenizer: Tokenizer) -> None:
    """Its thread releases the GIL: otherwise the loop would turn only some dozen times."""
    with open_tokenizer(tokenizer.artifact) as patient:
        work = [turns_beside(patient.encode(["cat" + " " * 99_000], PLAIN, None)) for _ in range(5)]
        assert max(map(asyncio.run, work)) > 1000


@pytest.fixture(scope="module", params=["bert", "roberta"])
def of_decoder(request: pytest.FixtureRequest, exported: Exported) -> Iterator[Tokenizer]:
    """Tokenizers whose decoder gives each token a text of its own, and whose decoder does not."""
    with open_tokenizer(exported(request.param).root) as tokenizer:
        yield tokenizer


IDS = st.lists(st.integers(0, 89), max_size=5)


@given(before=IDS, candidates=st.lists(IDS, max_size=3), after=IDS, pad=st.integers(0, 9), skip=st.booleans())
@example(before=[5] * 90, candidates=[[n % 90] * n for n in range(200)], after=[7], pad=0, skip=True)  # in chunks
def test_a_filled_text_is_that_of_all_its_ids_without_padding(
    of_decoder: Tokenizer, before: list[int], candidates: list[list[int]], after: list[int], pad: int, skip: bool
) -> None:
    decode = of_decoder._whole.decode
    found = of_decoder.decode_candidates(before, candidates, after, pad=pad, skip_special_tokens=skip)
    filled = [[] if pad in ids else ids for ids in candidates]
    assert asyncio.run(found) == [
        (decode(ids, False), decode([*before, *kept, *after], skip))
        for ids, kept in zip(candidates, filled, strict=True)
    ]


HIDDEN_FAULT = "((ⵣ.ⵥ)+)+$"  # exponential
FAILING = "ⵣxⵥ" * 40 + "!"


def with_tokenizer(artifact: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the artifact with another tokenizer.json, whose checksum is right."""
    shutil.copytree(artifact, folder)
    path = folder / "cpu" / TOKENIZER
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    with_own_digests(folder / "cpu")
    return folder


def test_a_panic_of_the_tokenizer_is_logged_and_a_500_with_the_index(
    bert_artifact: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splitter = {"type": "Split", "pattern": {"Regex": HIDDEN_FAULT}, "behavior": "Isolated", "invert": False}
    folder = with_tokenizer(bert_artifact, tmp_path / "a", lambda content: content.update(pre_tokenizer=splitter))
    with serve_in_process(folder) as client:
        for text in (FAILING, FAILING + " long" * 500):  # on the event loop, on the tokenizer's thread
            response = client.post("/embed", json={"inputs": ["cat", text, "dog"], "truncate": True})
            error = response.json()
            assert (response.status_code, error["code"], error["index"]) == (500, "tokenizer_failed", 1)
            assert "the tokenizer failed on this input (PanicException: Onig: Regex search error" in error["error"]
            assert "the tokenizer failed: PanicException: Onig: Regex search error" in caplog.text
            caplog.clear()
        response = client.post("/fill-mask", json={"inputs": "the [MASK]", "targets": [FAILING]})
        assert (response.status_code, response.json()["code"]) == (500, "tokenizer_failed")
        assert client.post("/embed", json={"inputs": ["cat"]}).status_code == 200


def test_an_interrupt_is_not_taken_for_a_failure_of_the_tokenizer() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(interrupted)


def test_an_exception_of_the_library_names_the_first_text_that_fails_alone(bert_artifact: Path, tmp_path: Path) -> None:
    def no_unknown(content: dict[str, Any]) -> None:
        content["model"]["unk_token"] = "[NOPE]"

    with (
        open_tokenizer(with_tokenizer(bert_artifact, tmp_path / "a", no_unknown)) as tokenizer,
        pytest.raises(TokenizerFailed, match="WordPiece error") as caught,
    ):
        encode_all(tokenizer, ["cat", "dog", "ⵣ", "ⵣ"], PLAIN, None)
    assert caught.value.index == 2


@pytest.mark.parametrize("truncate", ["right", "left", None])
def test_a_limit_that_leaves_no_room_for_a_pair_is_named(bert_artifact: Path, truncate: Any) -> None:
    artifact = open_artifact(bert_artifact)
    small = dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, max_tokens=3))
    with open_tokenizer(small) as tokenizer:
        assert len(encode(tokenizer, "cat dog cat", "right").ids) == 3
        with pytest.raises(Invalid, match="a pair has 3 special tokens: there is no room for two texts") as caught:
            encode_all(tokenizer, ["cat", ("cat", "dog")], PLAIN, truncate)
        assert (caught.value.code, caught.value.index) == ("too_long", 1)
