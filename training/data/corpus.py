"""Articles and a tokenizer in, flat arrays on disk out: tokens, and where sentences and articles begin.

Encodes once; later runs open the arrays. Knows nothing of batches or of the network.
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

from training.data.articles import is_held_out, language_of, read_articles, sentences

Array = npt.NDArray[Any]
PARTS = ("train", "held_out")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One corpus file, encoded. Sentence i is tokens[starts[i]:starts[i + 1]]; it belongs to article[i]."""

    name: str
    language: str
    tokens: Array  # [tokens] uint16
    starts: Array  # [sentences + 1] int64
    article: Array  # [sentences] int32


def encode_once(*, corpus: list[Path], tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in corpus:
        if not (folder / f"{path.name.split('.')[0]}.done").exists():
            encode_file(path, tokenizer=tokenizer, folder=folder)


def open_sources(*, folder: Path, part: str) -> list[Source]:
    return [open_source(path.stem, folder=folder, part=part) for path in sorted(folder.glob("*.done"))]


def open_source(name: str, *, folder: Path, part: str) -> Source:
    def array(kind: str) -> Array:
        loaded: Array = np.load(folder / f"{name}.{part}.{kind}.npy")
        return loaded

    return Source(
        name=name,
        language=language_of(Path(name)),
        tokens=array("tokens"),
        starts=array("starts"),
        article=array("article"),
    )


def encode_file(path: Path, *, tokenizer: Tokenizer, folder: Path) -> None:
    name = path.name.split(".")[0]
    pieces: dict[str, list[Array]] = {part: [] for part in PARTS}
    articles: dict[str, list[int]] = {part: [] for part in PARTS}
    numbered = numbered_sentences(path)
    while block := list(islice(numbered, 20_000)):
        encoded = tokenizer.encode_batch_fast([text for _, _, text in block], add_special_tokens=False)
        for (part, number, _), sentence in zip(block, encoded, strict=True):
            pieces[part].append(np.asarray(sentence.ids, dtype=np.uint16))
            articles[part].append(number)
    for part in PARTS:
        lengths = np.asarray([len(piece) for piece in pieces[part]], dtype=np.int64)
        np.save(folder / f"{name}.{part}.tokens.npy", np.concatenate(pieces[part]))
        np.save(folder / f"{name}.{part}.starts.npy", np.concatenate([[0], np.cumsum(lengths)]))
        np.save(folder / f"{name}.{part}.article.npy", np.asarray(articles[part], dtype=np.int32))
        log.info("encoded %s %s: %d sentences, %d tokens", name, part, len(lengths), lengths.sum())
    (folder / f"{name}.done").touch()


def numbered_sentences(path: Path) -> Iterator[tuple[str, int, str]]:
    for number, article in enumerate(read_articles(path)):
        part = "held_out" if is_held_out(article) else "train"
        for sentence in sentences(article):
            yield part, number, sentence
