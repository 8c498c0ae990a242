"""A long text, tokenized piece by piece: the tokens are those of the whole text, and no more of it is read than needed.

Where a text can be cut depends on the tokenizer. A tokenizer for which no safe cuts are known reads its texts at once.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from model_export.artifact.placement import Ints
from service.errors import TokenizerFailed
from service.tokenization.encoding import Direction, Text, longest_first
from service.tokenization.tokenizer_check import guard

PIECE_CHARACTERS = 5000  # 1 to 10 ms of tokenizing: a token takes 1 to 2 us on a quiet core, a Chinese character is one
FIRST_CHARACTERS_PER_TOKEN = 4  # of the first piece of a text that is cut: English words have a little more
BETWEEN_WORDS = r"(?<=[0-9A-Za-z])(?= [0-9A-Za-z])"
# words end at these marks whatever follows, and each Chinese character is a word
OF_BERT = r"(?<=[0-9A-Za-z])(?=[ .,;:!?])|(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
ENDS_WORDS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
PROBE = (
    "The quick brown fox 12 jumped  over\nthe 3 lazy dogs , and the river's long bank. It flows;by naïve Ünïcode words "
    "at 北京大学 , (x) 7 of it's end"
)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where the texts of one tokenizer can be cut; `pattern` is None where that is not known."""

    pattern: re.Pattern[str] | None

    @classmethod
    def of(cls, tokenizer: HFTokenizer) -> "Cuts":
        """Only where words end, and only if a probe gives the same tokens and offsets whole and cut anywhere."""
        content = json.loads(tokenizer.to_str())
        parts = _parts(content["pre_tokenizer"], "pretokenizers")
        words_end = any(
            part["type"] in ENDS_WORDS and part.get("split", True) and part.get("use_regex", True) for part in parts
        )
        alone = [part["type"] for part in parts] == ["BertPreTokenizer"]
        chinese = (content["normalizer"] or {}).get("handle_chinese_chars", False)
        pattern = re.compile(OF_BERT if alone and chinese else BETWEEN_WORDS)
        if any(pattern.search(token["content"]) for token in content["added_tokens"]) or not words_end:
            return cls(None)
        try:
            return cls(pattern if guard(lambda: _keeps_tokens(tokenizer, pattern)) else None)
        except TokenizerFailed:
            return cls(None)

    def next(self, text: str, start: int) -> int:
        """The first cut at or after `start`; the end of the text where there is none."""
        found = self.pattern.search(text, start) if self.pattern and start < len(text) else None
        return found.start() if found else len(text)


@dataclass(slots=True, eq=False)
class Side:
    """A text, or one side of a pair, of which a part has been tokenized: its beginning, or its end if `from_end`."""

    text: str
    from_end: bool
    tokens: int = 0  # so far
    encodings: list[Encoding] = field(default_factory=list)  # in the order of the text
    _seen: int = 0  # characters
    _first: int = 0  # the first character of `encodings`

    @property
    def left(self) -> int:
        """Characters that have not been tokenized."""
        return len(self.text) - self._seen

    def read(self, tokenizer: HFTokenizer, cuts: Cuts, characters: int, room: int) -> None:
        """Tokenizes about so many more characters. Beyond `room` tokens are only counted."""
        if self.from_end:
            end = self.left
            start = cuts.next(self.text, max(0, end - characters)) if end > characters else 0
            while start >= end > characters:  # no cut so near: further to the left
                characters *= 2
                start = cuts.next(self.text, end - characters) if end > characters else 0
        else:
            start = self._seen
            end = cuts.next(self.text, start + characters)
        (encoding,) = tokenizer.encode_batch([self.text[start:end]], add_special_tokens=False)
        self._seen += end - start
        if self.tokens < room:
            self.encodings.insert(0 if self.from_end else len(self.encodings), encoding)
            self._first = start if self.from_end else 0
        self.tokens += len(encoding)

    def keep(self, size: int) -> tuple[Encoding, Ints]:
        """Its last `size` tokens if `from_end`, else the first; and their first and end characters, [size, 2]."""
        merged = Encoding.merge(self.encodings, growing_offsets=True) if len(self.encodings) > 1 else self.encodings[0]
        merged.truncate(size, direction="left" if self.from_end else "right")
        offsets = np.array(merged.offsets, np.int32).reshape(-1, 2)
        return merged, offsets + np.int32(self._first)


@dataclass(slots=True, eq=False)
class LongText:
    """A text or pair on its way to at most `room` tokens, special ones not counted; `read` until it is `done`."""

    tokenizer: HFTokenizer
    cuts: Cuts
    text: Text
    room: int
    truncate: Direction | None  # None: nothing is cut off, and reading ends when it is known that there is no room
    count_all: bool  # read all of the text even where the rest cannot matter
    sides: list[Side] = field(init=False)
    _characters: int = field(init=False)  # of the next piece

    def __post_init__(self) -> None:
        parts = [self.text] if isinstance(self.text, str) else list(self.text)
        self.sides = [Side(part, self.truncate == "left") for part in parts]
        few = self.truncate and not self.count_all
        self._characters = min(PIECE_CHARACTERS, FIRST_CHARACTERS_PER_TOKEN * self.room) if few else PIECE_CHARACTERS

    @property
    def tokens(self) -> int:
        """So far."""
        return sum(side.tokens for side in self.sides)

    @property
    def left(self) -> int:
        """Characters that have not been tokenized."""
        return sum(side.left for side in self.sides)

    @property
    def done(self) -> bool:
        return self._next_side() is None

    def read(self) -> None:
        """Tokenizes the next piece."""
        if side := self._next_side():
            side.read(self.tokenizer, self.cuts, self._characters, self.room)
            self._characters = min(2 * self._characters, PIECE_CHARACTERS)

    @property
    def empty(self) -> bool:
        """As EncodedText.empty, once it is done."""
        return any(not side.tokens for side in self.sides)

    def encoding(self) -> tuple[Encoding, Ints]:
        """With special tokens, cut to `room`; and the first and end characters of the others, [tokens, 2].

        The characters are not those of the Encoding: RoBERTa's post-processor trims them once more there.
        """
        if len(self.sides) == 1:
            kept, offsets = self.sides[0].keep(self.room)
            return self.tokenizer.post_process(kept), offsets
        first, second = self.sides
        sizes = longest_first(first.tokens, second.tokens, self.room)
        (one, before), (other, after) = first.keep(sizes[0]), second.keep(sizes[1])
        return self.tokenizer.post_process(one, other), np.concatenate([before, after])

    def _next_side(self) -> Side | None:
        """The side to read next; None where the rest of the text cannot change the result."""
        unread = [side for side in self.sides if side.left or not side.encodings]
        if not unread or (self.truncate is None and self.tokens > self.room):
            return None
        if self.count_all:
            return unread[0]
        if short := [side for side in unread if side.tokens <= self.room]:
            return short[0]  # also at exactly the room: the rest may hold no token
        # both sides of a pair have more than the room: the longer one keeps the odd token
        others = [side for side in self.sides if side is not unread[0]]
        if not others or (len(unread) == 1 and unread[0].tokens > others[0].tokens):
            return None
        return min(unread, key=lambda side: side.tokens) if self.room % 2 else None


def _keeps_tokens(tokenizer: HFTokenizer, pattern: re.Pattern[str]) -> bool:
    whole = tokenizer.encode(PROBE, add_special_tokens=False)
    for found in pattern.finditer(PROBE):
        halves = tokenizer.encode_batch([PROBE[: found.start()], PROBE[found.start() :]], add_special_tokens=False)
        merged = Encoding.merge(halves, growing_offsets=True)
        if (merged.ids, merged.offsets) != (whole.ids, whole.offsets):
            return False
    return True


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The members of a Sequence in a tokenizer's file, or the component alone."""
    if component is None:
        return []
    return component[name] if component["type"] == "Sequence" else [component]
