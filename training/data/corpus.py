"""Encodes a corpus once into flat arrays on disk: tokens, and where sentences and articles begin.

Knows nothing of training rows or of the network.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from training.data.articles import is_held_out, language_of, read_articles, split_sentences

Array = npt.NDArray[Any]
PARTS = ("train", "held_out")
BATCH_SENTENCES = 20_000  # encoded in one call
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One corpus file, encoded. Sentence i is tokens[starts[i]:starts[i + 1]]; it belongs to article[i]."""

    name: str
    language: str
    tokens: Array  # [tokens] uint16
    starts: Array  # [sentences + 1] int64
    article: Array  # [sentences] int32

    @property
    def lone_sentences(self) -> bool:
        """Whether most articles are one sentence, as in Tatoeba: then no sentence has a next one.

        Computed from all articles at each call.
        """
        return bool(np.count_nonzero(np.diff(self.article)) + 1 > len(self.article) / 2)


def encode_once(*, corpus: list[Path], tokenizer: Tokenizer, folder: Path) -> None:
    """Encodes the files that have no arrays in `folder` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in corpus:
        if not (folder / f"{source_name(path)}.done").exists():
            encode_file(path, tokenizer=tokenizer, folder=folder)


def open_sources(*, folder: Path, part: str) -> list[Source]:
    """All sources of a part of PARTS, sorted by name."""
    return [open_source(path.stem, folder=folder, part=part) for path in sorted(folder.glob("*.done"))]


def open_source(name: str, *, folder: Path, part: str) -> Source:
    def load(field: str) -> Array:
        loaded: Array = np.load(folder / f"{name}.{part}.{field}.npy")
        return loaded

    return Source(
        name=name,
        language=language_of(Path(name)),
        tokens=load("tokens"),
        starts=load("starts"),
        article=load("article"),
    )


def continuing_pieces(tokenizer: Tokenizer) -> Array:
    """[vocabulary] bool: whether a token continues a word (`##ing`)."""
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return np.asarray([piece.startswith("##") for piece, _ in pieces])


def source_name(path: Path) -> str:
    return path.name.split(".")[0]


def encode_file(path: Path, *, tokenizer: Tokenizer, folder: Path) -> None:
    name = source_name(path)
    tokens: dict[str, list[Array]] = {part: [np.empty(0, dtype=np.uint16)] for part in PARTS}
    articles: dict[str, list[int]] = {part: [] for part in PARTS}
    numbered = number_sentences(path)
    while batch := list(islice(numbered, BATCH_SENTENCES)):
        encoded = tokenizer.encode_batch_fast([text for _, _, text in batch], add_special_tokens=False)
        for (part, number, _), sentence in zip(batch, encoded, strict=True):
            tokens[part].append(np.asarray(sentence.ids, dtype=np.uint16))
            articles[part].append(number)
    for part in PARTS:
        lengths = np.asarray(
            [len(sentence) for sentence in tokens[part]], dtype=np.int64
        )  # the first, 0, is no sentence
        np.save(folder / f"{name}.{part}.tokens.npy", np.concatenate(tokens[part]))
        np.save(folder / f"{name}.{part}.starts.npy", np.cumsum(lengths))
        np.save(folder / f"{name}.{part}.article.npy", np.asarray(articles[part], dtype=np.int32))
        log.info("encoded %s %s: %d sentences, %d tokens", name, part, len(lengths) - 1, lengths.sum())
    (folder / f"{name}.done").touch()


def number_sentences(path: Path) -> Iterator[tuple[str, int, str]]:
    """Part, number of the article and text of each sentence."""
    for number, article in enumerate(read_articles(path)):
        part = "held_out" if is_held_out(article) else "train"
        for sentence in split_sentences(article):
            yield part, number, sentence
