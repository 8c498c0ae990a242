"""A finished model is made larger: its pieces keep their ids and rows, new words get the mean of their pieces."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.paths import SAMPLE
from training.data.larger_vocabulary import enlarge_vocabulary
from training.model.grow import BIAS, WORDS, grow
from training.model.shape import read_config

ADDED = 12


@pytest.fixture(scope="module")
def larger(corpus: Path) -> Tokenizer:
    smaller = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    return enlarge_vocabulary(smaller, corpus=sorted(corpus.iterdir()), size=smaller.get_vocab_size() + ADDED)


def test_the_old_pieces_keep_their_ids_and_names_come_first(larger: Tokenizer) -> None:
    smaller = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    size = smaller.get_vocab_size()
    assert all(larger.id_to_token(number) == smaller.id_to_token(number) for number in range(size))
    assert larger.get_vocab_size() == size + ADDED
    first = larger.id_to_token(size)
    assert len(smaller.encode(first, add_special_tokens=False).ids) > 1
    assert larger.encode(first, add_special_tokens=False).ids == [size]


def test_a_corpus_with_too_few_words_is_refused(corpus: Path) -> None:
    smaller = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    with pytest.raises(ValueError, match="words that are no pieces"):
        enlarge_vocabulary(smaller, corpus=sorted(corpus.iterdir()), size=smaller.get_vocab_size() + 10_000)


def test_layers_are_copies_and_new_rows_are_means(larger: Tokenizer, tmp_path: Path) -> None:
    grow(SAMPLE, larger=larger, layers=6, output=tmp_path)
    old, new = load_file(SAMPLE / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    shape, before = read_config(tmp_path / "config.json"), read_config(SAMPLE / "config.json")
    assert (shape.layers, shape.vocabulary_size) == (6, before.vocabulary_size + ADDED)
    name = "bert.encoder.layer.{}.attention.self.query.weight"
    for layer in range(6):
        assert np.array_equal(new[name.format(layer)], old[name.format(layer * before.layers // 6)])
    assert np.array_equal(new[WORDS][: before.vocabulary_size], old[WORDS])
    smaller = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    word = larger.id_to_token(before.vocabulary_size)
    ids = smaller.encode(word, add_special_tokens=False).ids
    mean = old[WORDS][ids].astype(np.float32).mean(0)
    assert np.allclose(new[WORDS][before.vocabulary_size], mean, atol=1e-3)
    assert new[BIAS].shape == (shape.vocabulary_size,)
