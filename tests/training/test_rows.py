"""Training rows: sequences packed side by side, next-sentence pairs, and BERT's masking."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.paths import SAMPLE
from training.data.batches import (
    CLS,
    IGNORE,
    IS_NEXT,
    IS_RANDOM,
    MASK,
    MIN_SEQUENCE,
    SEP,
    SPECIALS,
    PackedSequence,
    Packer,
    Rows,
    SequenceSampler,
    word_starts,
)
from training.data.corpus import Array, Source, continuing_pieces
from training.data.vocabulary import VOCABULARY_FILES

VOCABULARY_SIZE = 16_384
COUNT, LENGTH = 64, 128
CONTINUING = np.arange(200) >= 100  # of an invented vocabulary: the upper half continues words


def make_packer(sources: list[Source]) -> Packer:
    return Packer(sources, shares=[0.3, 0.7], vocabulary_size=VOCABULARY_SIZE)


@pytest.fixture(scope="module")
def rows(sources: list[Source]) -> Rows:
    return make_packer(sources).make_rows(count=COUNT, length=LENGTH, seed=(1, 2))


def unmasked_ids(rows: Rows) -> Array:
    """[rows, length]: the ids before masking."""
    ids = rows.ids.copy()
    ids.ravel()[rows.masked] = rows.targets
    return ids


def article_of(source: Source, text: Array) -> set[int]:
    """The articles in which the tokens `text` stand next to each other."""
    windows = np.lib.stride_tricks.sliding_window_view(source.tokens, len(text))
    places = np.flatnonzero((windows == text).all(axis=1))
    return {int(source.article[np.searchsorted(source.starts, place, side="right") - 1]) for place in places}


def test_the_same_seed_gives_the_same_rows(sources: list[Source], rows: Rows) -> None:
    packer = make_packer(sources)
    packer.make_rows(count=8, length=LENGTH, seed=(9,))  # what came before does not matter
    again = packer.make_rows(count=COUNT, length=LENGTH, seed=(1, 2))
    other = packer.make_rows(count=COUNT, length=LENGTH, seed=(1, 3))
    for field in Rows.__dataclass_fields__:
        assert np.array_equal(getattr(rows, field), getattr(again, field))
    assert not np.array_equal(rows.ids, other.ids)


def test_rows_come_from_the_sources_by_their_shares(sources: list[Source]) -> None:
    rows = make_packer(sources).make_rows(count=1000, length=32, seed=(3,))
    assert 0.65 < rows.chinese.mean() < 0.75


def test_each_sequence_of_a_row_has_its_own_block_positions_and_segments(rows: Rows) -> None:
    ids = unmasked_ids(rows)
    for row in range(COUNT):
        used = 0
        for block in range(rows.blocks[row].max() + 1):
            columns = np.flatnonzero(rows.blocks[row] == block)
            assert columns.tolist() == list(range(used, used + len(columns)))
            used += len(columns)
            sequence, segments = ids[row, columns], rows.segments[row, columns]
            assert rows.positions[row, columns].tolist() == list(range(len(columns)))
            assert sequence[0] == CLS
            assert sequence[-1] == SEP
            assert (sequence == SEP).sum() == 1 + segments.max()
            first_end = int(np.flatnonzero(sequence == SEP)[0])
            assert (segments == (np.arange(len(columns)) > first_end)).all()
        assert LENGTH - used < MIN_SEQUENCE
        assert not ids[row, used:].any()
        assert (rows.blocks[row, used:] == -1).all()


def test_labels_belong_to_the_first_tokens_of_the_sequences(rows: Rows) -> None:
    labelled = rows.labels != IGNORE
    assert (unmasked_ids(rows).ravel()[rows.starts[labelled]] == CLS).all()
    pairs = rows.segments.ravel()  # a labelled sequence is a pair: its block has a second segment
    blocks = rows.blocks.ravel()
    for start in rows.starts[labelled]:
        row = slice(start // LENGTH * LENGTH, (start // LENGTH + 1) * LENGTH)
        assert pairs[row][blocks[row] == blocks[start]].max() == 1


def test_fifteen_percent_of_each_row_are_masked_and_no_special_token(rows: Rows, sources: list[Source]) -> None:
    assert (np.bincount(rows.masked // LENGTH, minlength=COUNT) == int(0.15 * LENGTH)).all()
    assert len(set(rows.masked.tolist())) == len(rows.masked)
    assert (rows.targets >= SPECIALS).all()
    whole_words = Packer(
        sources, shares=[1, 1], vocabulary_size=VOCABULARY_SIZE, continuing=np.arange(VOCABULARY_SIZE) % 2 == 1
    )
    assert (whole_words.make_rows(count=COUNT, length=LENGTH, seed=(4,)).targets >= SPECIALS).all()


def test_masked_tokens_follow_the_rule_of_80_10_10(sources: list[Source]) -> None:
    rows = make_packer(sources).make_rows(count=600, length=LENGTH, seed=(4,))
    ids = rows.ids.ravel()[rows.masked]
    shares = {
        "mask": (ids == MASK).mean(),
        "same": (ids == rows.targets).mean(),
        "random": ((ids != MASK) & (ids != rows.targets)).mean(),
    }
    assert len(ids) == 600 * 19  # so that the standard deviation of a share is at most 0.004
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "random": 0.1}, abs=0.015)
    drawn = ids[(ids != MASK) & (ids != rows.targets)]
    assert drawn.min() >= SPECIALS
    assert drawn.max() < VOCABULARY_SIZE
    assert len(set(drawn.tolist())) > 0.9 * len(drawn)  # from the whole vocabulary


def test_tokens_that_are_not_masked_stay(rows: Rows, sources: list[Source]) -> None:
    packer = make_packer(sources)
    packer.reseed((5,))
    before = unmasked_ids(rows)
    after = before.copy()
    masked, targets = packer.mask(after)
    assert np.array_equal(before.ravel()[masked], targets)
    kept = np.ones(before.size, dtype=bool)
    kept[masked] = False
    assert np.array_equal(before.ravel()[kept], after.ravel()[kept])


@pytest.mark.parametrize("draw", [SequenceSampler.draw_long_pair, SequenceSampler.draw_short_pair])
def test_half_of_the_pairs_follow_each_other(
    draw: Callable[[SequenceSampler, int], PackedSequence], sources: list[Source]
) -> None:
    (source, _) = sources
    sampler = SequenceSampler(source, random=np.random.default_rng(6))
    pairs = [draw(sampler, 60) for _ in range(400)]
    labels = Counter(pair.label for pair in pairs)
    assert set(labels) == {IS_NEXT, IS_RANDOM}
    assert 140 < labels[IS_NEXT] < 260
    for pair in pairs:
        assert len(pair) <= 60
        assert len(pair.first)
        assert len(pair.second)
        if pair.label == IS_NEXT:
            assert article_of(source, np.concatenate([pair.first, pair.second]))
        elif len(pair.first) > 8 and len(pair.second) > 8:  # long enough to occur only once
            assert article_of(source, pair.first).isdisjoint(article_of(source, pair.second))


def test_a_single_sentence_has_no_label(sources: list[Source]) -> None:
    sampler = SequenceSampler(sources[1], random=np.random.default_rng(7))
    for left in (MIN_SEQUENCE, 12, 23):
        sequence = sampler.draw(left, fresh=False)
        assert sequence.label == IGNORE
        assert len(sequence.second) == 0
        assert len(sequence) <= left


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
    single = masked_per_word(sources, continuing=None)
    assert not (np.isin(single, (0, 4)).sum(axis=1) >= 31).any()


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_a_run_says_which_share_of_the_tokens_is_masked(sources: list[Source], share: float) -> None:
    packer = Packer(sources, shares=[1, 0], vocabulary_size=VOCABULARY_SIZE, masked_share=share)
    assert len(packer.make_rows(count=2, length=128, seed=(6,)).masked) == 2 * int(share * 128)


def test_the_shares_of_the_sources_can_change(sources: list[Source]) -> None:
    packer = Packer(sources, shares=[1, 0], vocabulary_size=VOCABULARY_SIZE)
    assert not packer.make_rows(count=20, length=64, seed=(5,)).chinese.any()
    packer.set_shares([0, 3])
    assert packer.make_rows(count=20, length=64, seed=(5,)).chinese.all()
