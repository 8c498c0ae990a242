"""The vocabulary is lower-cased WordPiece for English and Chinese, in the files that transformers reads."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.paths import SAMPLE
from training.data import vocabulary
from training.data.articles import find_corpus
from training.data.batches import CLS, MASK, SEP, SPECIALS
from training.data.prepare import prepare
from training.data.vocabulary import VOCABULARY_FILES, frequent_chinese


@pytest.fixture(scope="module")
def tokenizer(work: Path) -> Tokenizer:
    return Tokenizer.from_file(str(work / "vocabulary" / "tokenizer.json"))


def test_texts_are_encoded_as_bert_does_and_each_chinese_character_is_a_token(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")] == [0, CLS, SEP, MASK]
    assert {tokenizer.token_to_id(token) for token in vocabulary.SPECIAL} == set(range(SPECIALS))
    encoded = tokenizer.encode("The River", "old house")
    assert encoded.tokens == ["[CLS]", "the", "river", "[SEP]", "old", "house", "[SEP]"]
    assert encoded.type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.encode("我在学校", add_special_tokens=False).tokens == ["我", "在", "学", "校"]


def test_only_frequent_chinese_characters_enter_the_alphabet(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = find_corpus(corpus)
    monkeypatch.setattr(vocabulary, "MIN_CHINESE_COUNT", 1)
    every = frequent_chinese(paths)
    assert {"我", "校"} <= set(every)
    assert "。" not in every
    text = (corpus / "zhwiki.txt").read_text("utf-8")
    monkeypatch.setattr(vocabulary, "MIN_CHINESE_COUNT", text.count("我") + 1)
    assert "我" not in frequent_chinese(paths)


def test_vocab_txt_lists_the_tokens_in_the_order_of_their_ids(work: Path, tokenizer: Tokenizer) -> None:
    tokens = (work / "vocabulary" / "vocab.txt").read_text("utf-8").splitlines()
    assert {token: number for number, token in enumerate(tokens)} == tokenizer.get_vocab()
    settings = json.loads((work / "vocabulary" / "tokenizer_config.json").read_text("utf-8"))
    assert settings["do_lower_case"] is True
    assert settings["model_max_length"] == 512


def test_a_run_that_continues_a_model_takes_its_vocabulary(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "vocabulary").mkdir(parents=True)
    (tmp_path / "other" / "vocabulary" / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is not the vocabulary of .*sample: use another --work folder"):
        prepare(corpus=corpus, work=tmp_path / "other", start=SAMPLE)
    prepare(corpus=corpus, work=tmp_path, start=SAMPLE)
    for name in VOCABULARY_FILES:
        assert (tmp_path / "vocabulary" / name).read_bytes() == (SAMPLE / name).read_bytes()
