"""Reads a corpus file as articles, and splits an article into sentences.

A file is text, or text packed with zstandard: one paragraph a line, a blank line between articles. Its language is the
start of its name: `zh` is Chinese, anything else English. Knows nothing of tokens.
"""

import hashlib
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TextIO

SUFFIXES = (".txt", ".txt.zst")
HELD_OUT_ONE_IN = 100
MIN_WORDS, MAX_WORDS = 5, 30  # of a sampled sentence
PER_ARTICLE = 3  # sampled sentences at most
SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])|(?<=[。！？])(?![」』”’）》。！？])|(?<=[。！？][」』”’])"
)


def find_corpus(folder: Path) -> list[Path]:
    """The corpus files of a folder, sorted by name; raises FileNotFoundError if there are none."""
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if not paths:
        raise FileNotFoundError(f"{folder} has no file with the suffix {' or '.join(SUFFIXES)}")
    return paths


def language_of(path: Path) -> str:
    return "zh" if path.name.startswith("zh") else "en"


def read_articles(path: Path) -> Iterator[list[str]]:
    """Yields the paragraphs of one article after another."""
    with open_text(path) as lines:
        for has_text, paragraphs in groupby((line.strip() for line in lines), key=bool):
            if has_text:
                yield list(paragraphs)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".zst":
        with path.open(encoding="utf-8") as text:
            yield text
        return
    import zstandard  # only packed files need it

    with path.open("rb") as packed:
        stream = zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(packed)
        yield io.TextIOWrapper(stream, encoding="utf-8")


def is_held_out(paragraphs: list[str]) -> bool:
    """Whether training leaves this article out: one in HELD_OUT_ONE_IN, by a hash of the text."""
    digest = hashlib.md5("\n".join(paragraphs).encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % HELD_OUT_ONE_IN == 0


def split_sentences(paragraphs: list[str]) -> list[str]:
    found = (sentence.strip() for paragraph in paragraphs for sentence in SENTENCE_END.split(paragraph))
    return [sentence for sentence in found if sentence]


def sample_sentences(paths: Iterable[Path], *, reserved: Callable[[str], bool], count: int) -> list[str]:
    """At most `count` English sentences of articles that are not held out, without those that are `reserved`.

    Of one article at most PER_ARTICLE; the same files give the same sentences.
    """
    draw = random.Random(1)
    chosen: list[str] = []
    for article in (article for path in paths for article in read_articles(path)):
        if not is_held_out(article):
            fit = [one for one in split_sentences(article) if MIN_WORDS <= len(one.split()) <= MAX_WORDS]
            chosen.extend(one for one in draw.sample(fit, min(PER_ARTICLE, len(fit))) if not reserved(one))
    return draw.sample(chosen, min(count, len(chosen)))
