"""Texts read by the tokenizer and its readers, at once, without an event loop."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from packbert.service.artifact import Artifact, open_artifact
from packbert.service.tokenization.chunks import TextChunk, TextReader, in_steps
from packbert.service.tokenization.encoding import Direction, EncodedText, EncodeOptions, Text
from packbert.service.tokenization.tokenizer import Tokenizer


@contextmanager
def open_tokenizer(artifact: Artifact | Path, max_characters: int = 100_000) -> Iterator[Tokenizer]:
    """The tokenizer of an artifact, which is closed at the end."""
    found = open_artifact(artifact) if isinstance(artifact, Path) else artifact
    with closing(Tokenizer(found, max_characters)) as tokenizer:
        tokenizer.open()
        yield tokenizer


def encode(
    tokenizer: Tokenizer, texts: Sequence[Text], options: EncodeOptions, truncate: Direction | None
) -> list[EncodedText]:
    return asyncio.run(tokenizer.encode(texts, options, truncate))


def read_chunks(reader: TextReader) -> list[TextChunk]:
    """All chunks; only the last one says that nothing is left."""
    chunks = []
    for texts in in_steps(reader.sizes, reader.position, reader.sequences_per_text):
        chunks.append(reader.read(texts.stop))
        assert (chunks[-1].left == 0) == (reader.position == len(reader.texts))
    return chunks


def read_all(reader: TextReader) -> tuple[list[EncodedText], list[int]]:
    """The sequences, and the text of each."""
    chunks = read_chunks(reader)
    owners = [owner for chunk in chunks for owner in chunk.owners]
    assert owners == sorted(owners)
    return [one for chunk in chunks for one in chunk.work], owners


def fields(one: EncodedText) -> tuple[Any, ...]:
    """What two equal sequences have in common."""
    arrays = [(array.tolist(), array.dtype) for array in (one.ids, one.types, one.spans)]
    return *arrays, one.outputs, one.masks, one.top_k, one.truncated, one.empty, one.pooled_from
