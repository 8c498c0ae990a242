"""Corpus files in, articles out: each article is a list of sentences.

Knows the file format (one paragraph a line, a blank line between articles); knows nothing of tokens.
"""

import hashlib
import io
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import zstandard

HELD_OUT_ONE_IN = 100
SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])|(?<=[。！？])(?![」』”’）》。！？])|(?<=[。！？][」』”’])"
)


def language_of(path: Path) -> str:
    return "zh" if path.name.startswith("zh") else "en"


def read_articles(path: Path) -> Iterator[list[str]]:
    """Yields the paragraphs of one article after the other."""
    with path.open("rb") as packed:
        stream = zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(packed)
        lines = (line.strip() for line in io.TextIOWrapper(stream, encoding="utf-8"))
        for has_text, paragraphs in groupby(lines, key=bool):
            if has_text:
                yield list(paragraphs)


def is_held_out(paragraphs: list[str]) -> bool:
    """One article in a hundred, chosen by its text, so that every run leaves out the same ones."""
    digest = hashlib.md5("\n".join(paragraphs).encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % HELD_OUT_ONE_IN == 0


def sentences(paragraphs: list[str]) -> list[str]:
    pieces = (piece.strip() for paragraph in paragraphs for piece in SENTENCE_END.split(paragraph))
    return [piece for piece in pieces if piece]
