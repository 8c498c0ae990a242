"""A start model: a sentence-transformer's body with a finished model's vocabulary, or a finished model made larger."""

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
from training.data.vocabulary import is_chinese
from training.model.adopt import HEADS, adopt, associate
from training.model.grow import BIAS, WORDS, grow
from training.model.shape import read_config, write_config
from training.run.recipe import SHAPE

HIDDEN, INNER = 8, 16
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "water", "the", "in", "##teresting", "a", "##b"]
ENGLISH = ["the cat", "a cat", "the dog", "a dog", "the water", "a water"]
CHINESE = ["猫", "这猫", "狗", "这狗", "水", "这水"]
SIZE = SHAPE.vocabulary_size  # of a first run; the bundled model's later pieces were added to it
ADDED = 12
Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A body of one layer with a vocabulary of its own, and the start model that is made with it."""
    body, output = tmp_path_factory.mktemp("body"), tmp_path_factory.mktemp("start")
    content = json.loads((SAMPLE / "tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"] = {piece: number for number, piece in enumerate(PIECES)}
    (body / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    config = json.loads((SAMPLE / "config.json").read_text("utf-8"))
    sizes = {"vocab_size": len(PIECES), "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1}
    (body / "config.json").write_text(json.dumps(config | sizes), "utf-8")
    draw = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {
        "embeddings.word_embeddings.weight": draw.normal(size=(len(PIECES), HIDDEN)).astype(np.float32),
        "encoder.layer.0.output.dense.weight": draw.normal(size=(HIDDEN, INNER)).astype(np.float32),
        "embeddings.position_ids": np.arange(512)[None],
    }
    save_file(weights, body / "model.safetensors")
    adopt(body, start=SAMPLE, english=ENGLISH, chinese=CHINESE, output=output)
    return body, output


@pytest.fixture(scope="module")
def vocabulary() -> dict[str, int]:
    return Tokenizer.from_file(str(SAMPLE / "tokenizer.json")).get_vocab()


def test_the_layers_are_the_bodys_and_the_vocabulary_the_finished_models(folders: Folders) -> None:
    body, output = folders
    theirs, ours = load_file(body / "model.safetensors"), load_file(output / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert np.allclose(ours[f"bert.{name}"], theirs[name], atol=2e-3)
    assert {array.dtype for array in ours.values()} == {np.dtype(np.float16)}
    shape = read_config(output / "config.json")
    assert (shape.hidden, shape.layers, shape.vocabulary_size) == (HIDDEN, 1, len(ours[WORDS]))
    assert len(ours[WORDS]) == read_config(SAMPLE / "config.json").vocabulary_size
    assert np.array_equal(ours[BIAS], load_file(SAMPLE / "model.safetensors")[BIAS])
    assert np.array_equal(ours[f"{HEADS}.dense.weight"], np.eye(HIDDEN))


def test_a_shared_piece_keeps_its_embedding_others_have_a_mean(folders: Folders, vocabulary: dict[str, int]) -> None:
    body, output = folders
    theirs = load_file(body / "model.safetensors")["embeddings.word_embeddings.weight"]
    ours = load_file(output / "model.safetensors")[WORDS]
    for piece in ("[MASK]", "cat", "the"):
        assert np.allclose(ours[vocabulary[piece]], theirs[PIECES.index(piece)], atol=2e-3)
    mean = theirs[[PIECES.index("in"), PIECES.index("##teresting")]].mean(0)
    assert np.allclose(ours[vocabulary["interesting"]], mean, atol=2e-3)


def test_a_character_is_near_its_translations_and_has_a_finite_embedding(
    folders: Folders, vocabulary: dict[str, int]
) -> None:
    ours = load_file(folders[1] / "model.safetensors")[WORDS].astype(np.float32)
    assert np.isfinite(ours).all()
    for character, word in (("猫", "cat"), ("狗", "dog"), ("水", "water")):
        assert np.allclose(ours[vocabulary[character]], ours[vocabulary[word]], atol=2e-3)
    rare = [number for piece, number in vocabulary.items() if is_chinese(piece[0]) and piece not in "这猫狗水"]
    assert len(np.unique(ours[rare], axis=0)) > 0.99 * len(rare)


def test_a_word_of_every_sentence_goes_with_no_character(vocabulary: dict[str, int]) -> None:
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    found = associate(tokenizer, [f"{text} ." for text in ENGLISH], CHINESE)
    for character in "猫狗水":
        pieces, weights = found[vocabulary[character]]
        assert weights.sum() == pytest.approx(1.0)
        assert weights[list(pieces).index(vocabulary["."])] == 0.0


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
    bundled, added = Tokenizer.from_file(str(SAMPLE / "tokenizer.json")), range(SIZE, SIZE + ADDED)
    assert [bundled.id_to_token(number) for number in added] == [larger.id_to_token(number) for number in added]
    first = larger.id_to_token(SIZE)
    assert len(smaller.encode(first, add_special_tokens=False).ids) > 1
    assert larger.encode(first, add_special_tokens=False).ids == [SIZE]


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
