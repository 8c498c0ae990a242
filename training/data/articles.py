"""Reads a corpus file as articles, and splits an article into sentences.

A file is text, or text packed with zstandard: one paragraph a line, a blank line between articles. Its language is the
start of its name: `zh` is Chinese, anything else English. Knows nothing of tokens.
"""

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TextIO

SUFFIXES = (".txt", ".txt.zst")
HELD_OUT_ONE_IN = 100
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
