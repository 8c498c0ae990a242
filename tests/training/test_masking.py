"""Whole words are masked in half of the rows; the shares of the sources change in the decay."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.paths import SAMPLE
from training.data.batches import SPECIALS, Packer, word_starts
from training.data.corpus import Array, Source, continuing_pieces
from training.data.vocabulary import VOCABULARY_FILES

CONTINUING = np.arange(200) >= 100  # of an invented vocabulary: the upper half continues words


def test_the_tokens_of_a_word_share_the_column_of_its_first() -> None:
    continues = np.array([[False, True, True, False, False, True], [False] * 6])
    assert word_starts(continues).tolist() == [[0, 0, 0, 3, 4, 4], [0, 1, 2, 3, 4, 5]]


def test_tokens_with_the_prefix_continue_a_word() -> None:
    assert "vocab.txt" in VOCABULARY_FILES
    continuing = continuing_pieces(Tokenizer.from_file(str(SAMPLE / "tokenizer.json")))
    tokens = (SAMPLE / "vocab.txt").read_text("utf-8").splitlines()
    assert continuing.tolist() == [token.startswith("##") for token in tokens]
    assert 0 < continuing.sum() < len(tokens)


def masked_per_word(sources: list[Source], *, continuing: Array | None) -> Array:
    """[rows, words]: the masked tokens of each word, in rows of 32 words of 4 tokens."""
    packer = Packer(sources, shares=[1, 1], vocabulary_size=200, continuing=continuing)
    packer.reseed((3,))
    ids = np.tile(np.array([10, 110, 120, 130]), (64, 32))
    masked, _ = packer.mask(ids)
    chosen = np.zeros(ids.size, dtype=bool)
    chosen[masked] = True
    counts: Array = chosen.reshape(64, 32, 4).sum(axis=2)
    return counts


def test_half_of_the_rows_are_masked_by_whole_words(sources: list[Source]) -> None:
    counts = masked_per_word(sources, continuing=CONTINUING)
    assert (counts.sum(axis=1) == int(0.15 * 128)).all()
    whole = np.isin(counts, (0, 4)).sum(axis=1) >= 31  # one word is cut where the row's share ends
    assert 16 < whole.sum() < 48


def test_without_the_vocabulary_words_are_masked_by_single_tokens(sources: list[Source]) -> None:
    counts = masked_per_word(sources, continuing=None)
    assert not (np.isin(counts, (0, 4)).sum(axis=1) >= 31).any()


def test_whole_words_never_reach_special_tokens(sources: list[Source]) -> None:
    continuing = np.arange(16_384) % 2 == 1
    packer = Packer(sources, shares=[1, 1], vocabulary_size=16_384, continuing=continuing)
    rows = packer.make_rows(count=64, length=128, seed=(4,))
    assert (rows.targets >= SPECIALS).all()


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_a_run_says_which_share_of_the_tokens_is_masked(sources: list[Source], share: float) -> None:
    packer = Packer(sources, shares=[1, 0], vocabulary_size=16_384, masked_share=share)
    assert len(packer.make_rows(count=2, length=128, seed=(6,)).masked) == 2 * int(share * 128)


def test_the_shares_of_the_sources_can_change(sources: list[Source]) -> None:
    packer = Packer(sources, shares=[1, 0], vocabulary_size=16_384)
    assert not packer.make_rows(count=20, length=64, seed=(5,)).chinese.any()
    packer.set_shares([0, 3])
    assert packer.make_rows(count=20, length=64, seed=(5,)).chinese.all()
