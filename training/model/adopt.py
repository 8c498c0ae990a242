"""Makes a start model of the body of a finished sentence-transformer and the vocabulary of another finished model.

The body is copied: layers, positions, segments and pooler. A piece of both vocabularies keeps the body's embedding;
another English piece gets the mean of those of the body's pieces of its text. A Chinese character gets the mean of the
English pieces that translations have where it occurs, weighted by their association (see `associate`): before any
training, the vector of a Chinese sentence was nearest to that of its translation for 75 % of 548 held-out sentences of
Tatoeba. Works on the files in the layout of transformers, without torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from training.data.corpus import Array
from training.data.vocabulary import SPECIAL, is_chinese
from training.model.grow import BIAS, WORDS
from training.model.shape import read_config, write_config

MIN_PAIRS = 2  # that a character must occur in; a rarer one gets the image of its embedding in the other model
NEIGHBOURS = 8  # English pieces at most that a character's embedding is the mean of
PENALTY = 10.0  # on the squares of the map between the models' embeddings; 1 to 100 fit other pieces equally well
HEADS = "cls.predictions.transform"


def adopt(body: Path, *, start: Path, english: Sequence[str], chinese: Sequence[str], output: Path) -> None:
    """Writes config.json and model.safetensors into `output`, not the vocabulary, which is that of `start`.

    english, chinese: translations of each other, by line.
    """
    shape = read_config(body / "config.json")
    theirs, finished = load_file(body / "model.safetensors"), load_file(start / "model.safetensors")
    weights = {f"bert.{name}": array for name, array in theirs.items() if array.dtype.kind == "f"}
    tokenizers = [Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (start, body)]
    known, shared = english_embeddings(*tokenizers, embeddings=weights[WORDS].astype(np.float32))
    neighbours = associate(tokenizers[0], english, chinese)
    weights[WORDS] = complete(known, shared=shared, neighbours=neighbours, old=finished[WORDS].astype(np.float32))
    weights |= fresh_heads(shape.hidden) | {BIAS: finished[BIAS]}
    output.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(array, dtype=np.float16) for name, array in weights.items()}
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    write_config(replace(shape, vocabulary_size=len(known)), path=output / "config.json")


def fresh_heads(hidden: int) -> dict[str, Array]:
    """The head of masked words passes the hidden state on; that of the next sentence answers 0."""
    return {
        f"{HEADS}.dense.weight": np.eye(hidden),
        f"{HEADS}.dense.bias": np.zeros(hidden),
        f"{HEADS}.LayerNorm.weight": np.ones(hidden),
        f"{HEADS}.LayerNorm.bias": np.zeros(hidden),
        "cls.seq_relationship.weight": np.zeros((2, hidden)),
        "cls.seq_relationship.bias": np.zeros(2),
    }


def english_embeddings(ours: Tokenizer, theirs: Tokenizer, *, embeddings: Array) -> tuple[Array, Array]:
    """[vocabulary, hidden], not a number for Chinese characters; [vocabulary] bool, whether both have the piece."""
    vocabulary, other = ours.get_vocab(), theirs.get_vocab()
    found = np.full((len(vocabulary), embeddings.shape[1]), np.nan, dtype=np.float32)
    shared = np.zeros(len(vocabulary), dtype=bool)
    for piece, number in vocabulary.items():
        if is_chinese(piece[0]):
            continue
        shared[number] = piece in other and piece not in SPECIAL
        ids = [other[piece]] if piece in other else split(piece, vocabulary=other)
        found[number] = embeddings[ids].mean(0) if ids else embeddings[other["[UNK]"]]
    return found, shared


def split(piece: str, *, vocabulary: dict[str, int]) -> list[int]:
    """The longest pieces of the vocabulary that together are `piece`; empty if there are none."""
    if not piece.removeprefix("##"):
        return []
    for end in range(len(piece), 2 if piece.startswith("##") else 0, -1):
        if piece[:end] in vocabulary:
            rest = piece[end:]
            following = split(f"##{rest}", vocabulary=vocabulary) if rest else []
            if following or not rest:
                return [vocabulary[piece[:end]], *following]
    return []


def associate(tokenizer: Tokenizer, english: Sequence[str], chinese: Sequence[str]) -> dict[int, tuple[Array, Array]]:
    """By character: the English pieces that go with it most, and their weights.

    A weight is P(piece | character) times the pointwise mutual information of the two, counted over pairs.
    """
    size = tokenizer.get_vocab_size()
    characters = [n for piece, n in tokenizer.get_vocab().items() if is_chinese(piece[0])]
    row = {number: at for at, number in enumerate(characters)}
    together = np.zeros((len(characters), size), dtype=np.uint16)
    of_character, of_piece = np.zeros(len(characters)), np.zeros(size)
    encoded = [tokenizer.encode_batch_fast(list(one), add_special_tokens=False) for one in (english, chinese)]
    for pieces, translation in zip(*encoded, strict=True):
        ids = [number for number in set(pieces.ids) if number not in row]
        rows = [row[number] for number in set(translation.ids) if number in row]
        together[np.ix_(rows, ids)] += 1
        of_character[rows] += 1
        of_piece[ids] += 1
    found: dict[int, tuple[Array, Array]] = {}
    for number, at in row.items():
        beside = np.flatnonzero(together[at])
        counts = together[at, beside].astype(np.float64)
        weights = np.log(np.maximum(counts * len(english) / (of_character[at] * of_piece[beside]), 1.0)) * counts
        best = np.argsort(-weights)[:NEIGHBOURS]
        if of_character[at] >= MIN_PAIRS and weights.any():
            found[number] = (beside[best], (weights[best] / weights[best].sum()).astype(np.float32))
    return found


def complete(known: Array, *, shared: Array, neighbours: dict[int, tuple[Array, Array]], old: Array) -> Array:
    """The embeddings of all pieces: those of Chinese characters added to the `known` ones.

    A character without neighbours gets its embedding in the model of `old`, mapped linearly: the map is the one that
    fits best from the shared pieces' old embeddings to their known ones, and the length is that of a shared piece.
    """
    missing = np.isnan(known[:, 0])
    centre = known[shared].mean(0)
    wanted, given = known[shared] - centre, old[shared] - old[shared].mean(0)
    image = np.linalg.solve(given.T @ given + PENALTY * np.eye(given.shape[1]), given.T @ wanted)
    mapped = (old[missing] - old[missing].mean(0)) @ image
    mapped *= np.linalg.norm(wanted, axis=1).mean() / np.maximum(np.linalg.norm(mapped, axis=1, keepdims=True), 1e-6)
    found = known.copy()
    found[missing] = mapped + centre
    for number, (ids, weights) in neighbours.items():
        found[number] = weights @ known[ids]
    return found
