"""Sentences with a teacher's vectors become rows; a sentence and its translation have one vector."""

import numpy as np
import pytest

from training.data.batches import CLS, SEP, SPECIALS
from training.data.sentences import MAX_TOKENS, PER_ROW, SentenceRows, TaughtSentences

LENGTHS = [3, 90, 7, 12, 5, 20]
GROUP = [0, 1, 2, 3, 0, 1]  # the last two are translations of the first two


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> TaughtSentences:
    path = tmp_path_factory.mktemp("teacher") / "vectors.npz"
    starts = np.cumsum([0, *LENGTHS])
    tokens = np.repeat(np.arange(len(LENGTHS)) + SPECIALS, LENGTHS).astype(np.uint16)  # each sentence one token
    np.savez(path, tokens=tokens, starts=starts, group=GROUP, vectors=np.eye(4, dtype=np.float16))
    return TaughtSentences(path)


@pytest.fixture(scope="module")
def rows(taught: TaughtSentences) -> SentenceRows:
    return taught.make_rows(count=6, length=128, seed=(1, 2))


def test_each_sentence_has_its_own_block_and_its_vector(rows: SentenceRows) -> None:
    ids, owners, positions = rows.ids.ravel(), rows.owners, rows.positions.ravel()
    used = np.flatnonzero(rows.wanted.any(axis=1))
    assert len(used) > 12
    for number in used:
        places = np.flatnonzero(owners == number)
        assert places[0] == rows.starts[number]
        assert positions[places].tolist() == list(range(len(places)))
        assert len(set(rows.blocks.ravel()[places])) == 1
        first, *text, last = ids[places].tolist()
        assert (first, last) == (CLS, SEP)
        sentence = text[0] - SPECIALS
        assert len(text) == min(LENGTHS[sentence], MAX_TOKENS - 2)
        assert rows.wanted[number].argmax() == GROUP[sentence]


def test_padding_belongs_to_no_sentence(rows: SentenceRows) -> None:
    padding = rows.blocks.ravel() == -1
    assert padding.any()
    assert (rows.owners[padding] == 6 * PER_ROW).all()
    assert not rows.ids.ravel()[padding].any()


def test_a_sentence_and_its_translation_are_drawn_together(taught: TaughtSentences) -> None:
    drawn = taught.draw(np.random.default_rng(1), count=100).tolist()
    assert len(drawn) == 100
    pairs = {0: 4, 4: 0, 1: 5, 5: 1}
    for before, number, after in zip(drawn, drawn[1:], drawn[2:], strict=False):
        if number in pairs:
            assert pairs[number] in (before, after)


def test_the_same_seed_gives_the_same_rows(taught: TaughtSentences, rows: SentenceRows) -> None:
    again, other = (taught.make_rows(count=6, length=128, seed=(1, last)) for last in (2, 3))
    assert all(np.array_equal(getattr(rows, f), getattr(again, f)) for f in SentenceRows.__dataclass_fields__)
    assert not np.array_equal(rows.ids, other.ids)
