"""Splits inputs into requests of about the same number of tokens. Knows no tokenizer: tokens are estimated."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Input = str | tuple[str, str]  # a text, or a pair of texts
SPECIAL_TOKENS = 2
CHARACTERS_PER_TOKEN = 4  # of text in an alphabet; a character above U+2E7F (Chinese, Japanese, Korean) is a token
FIRST_IDEOGRAPH = "\u2e80"
MAX_BYTES_PER_CHARACTER = 6  # in JSON: an escaped control character; most take one to three


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """Of one request."""

    tokens: int = 8192  # estimated; a few batches of the model
    inputs: int = 256
    characters: int = 8 * 2**20 // MAX_BYTES_PER_CHARACTER


def estimate_tokens(item: Input) -> int:
    text = item if isinstance(item, str) else "".join(item)
    ideographs = 0 if text.isascii() else sum(character >= FIRST_IDEOGRAPH for character in text)
    return SPECIAL_TOKENS + ideographs + (len(text) - ideographs) // CHARACTERS_PER_TOKEN


def split_into_chunks(items: Iterable[Input], limits: ChunkLimits) -> Iterator[list[Input]]:
    """Consecutive items; a chunk has one item at least, however large that is."""
    chunk: list[Input] = []
    tokens = characters = 0
    for item in items:
        size, length = estimate_tokens(item), len(item) if isinstance(item, str) else sum(map(len, item))
        full = len(chunk) >= limits.inputs or tokens + size > limits.tokens or characters + length > limits.characters
        if chunk and full:
            yield chunk
            chunk, tokens, characters = [], 0, 0
        chunk.append(item)
        tokens, characters = tokens + size, characters + length
    if chunk:
        yield chunk


def read_limits(info: dict[str, Any]) -> ChunkLimits:
    """The limits of a request, from /info."""
    limits, defaults = info.get("limits", {}), ChunkLimits()
    return ChunkLimits(
        tokens=min(defaults.tokens, limits.get("waiting_tokens", defaults.tokens) // 4),
        inputs=min(defaults.inputs, limits.get("inputs", defaults.inputs)),
        characters=min(defaults.characters, limits.get("body_bytes", 8 * defaults.characters) // 8),
    )
