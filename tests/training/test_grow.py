"""A finished model is made larger: its pieces keep their ids and rows, new words get the mean of their pieces."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tests.paths import SAMPLE
from training.data.larger_vocabulary import enlarge_vocabulary
from training.model.grow import BIAS, WORDS, grow
from training.model.shape import read_config, write_config
from training.run.recipe import SHAPE

SIZE = SHAPE.vocabulary_size  # of a first run; the bundled model's later pieces were added to it
ADDED = 12


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with the vocabulary of a first run."""
    folder = shutil.copytree(SAMPLE, tmp_path_factory.mktemp("start") / "model")
    content = json.loads((SAMPLE / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {piece: number for piece, number in vocabulary.items() if number < SIZE}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    weights = load_file(SAMPLE / "model.safetensors")
    weights |= {name: np.ascontiguousarray(weights[name][:SIZE]) for name in (WORDS, BIAS)}
    save_file(weights, folder / "model.safetensors")
    write_config(replace(read_config(SAMPLE / "config.json"), vocabulary_size=SIZE), path=folder / "config.json")
    return folder


@pytest.fixture(scope="module")
def smaller(start: Path) -> Tokenizer:
    return Tokenizer.from_file(str(start / "tokenizer.json"))


@pytest.fixture(scope="module")
def larger(corpus: Path, smaller: Tokenizer) -> Tokenizer:
    return enlarge_vocabulary(smaller, corpus=sorted(corpus.iterdir()), size=SIZE + ADDED)


def test_the_old_pieces_keep_their_ids_and_names_come_first(smaller: Tokenizer, larger: Tokenizer) -> None:
    assert all(larger.id_to_token(number) == smaller.id_to_token(number) for number in range(SIZE))
    assert larger.get_vocab_size() == SIZE + ADDED
    first = larger.id_to_token(SIZE)
    assert len(smaller.encode(first, add_special_tokens=False).ids) > 1
    assert larger.encode(first, add_special_tokens=False).ids == [SIZE]


def test_the_bundled_vocabulary_begins_its_added_words_with_the_names(larger: Tokenizer) -> None:
    bundled = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    added = range(SIZE, SIZE + ADDED)
    assert [bundled.id_to_token(number) for number in added] == [larger.id_to_token(number) for number in added]


def test_a_corpus_with_too_few_words_is_refused(corpus: Path, smaller: Tokenizer) -> None:
    with pytest.raises(ValueError, match="words that are no pieces"):
        enlarge_vocabulary(smaller, corpus=sorted(corpus.iterdir()), size=SIZE + 10_000)


def test_layers_are_copies_and_new_rows_are_means(
    start: Path, smaller: Tokenizer, larger: Tokenizer, tmp_path: Path
) -> None:
    before = read_config(start / "config.json")
    layers = before.layers + 2
    grow(start, larger=larger, layers=layers, output=tmp_path)
    old, new = load_file(start / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    shape = read_config(tmp_path / "config.json")
    assert (shape.layers, shape.vocabulary_size) == (layers, SIZE + ADDED)
    name = "bert.encoder.layer.{}.attention.self.query.weight"
    for layer in range(layers):
        assert np.array_equal(new[name.format(layer)], old[name.format(layer * before.layers // layers)])
    assert np.array_equal(new[WORDS][:SIZE], old[WORDS])
    ids = smaller.encode(larger.id_to_token(SIZE), add_special_tokens=False).ids
    mean = old[WORDS][ids].astype(np.float32).mean(0)
    assert np.allclose(new[WORDS][SIZE], mean, atol=1e-3)
    assert new[BIAS].shape == (shape.vocabulary_size,)
