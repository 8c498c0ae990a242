"""Text in, token ids out; ids in, words out. Owns its thread: long texts are tokenized off the event loop.

What looks like a special token in a user's text is text. In fill-mask alone the mask token is a mask.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from model_export.artifact.batch import Ints
from service.artifact import Artifact
from service.errors import Invalid

T = TypeVar("T")
Text = str | tuple[str, str]
Direction = Literal["right", "left"]
PORTION_CHARACTERS = 20_000  # about 5 ms of tokenizing
INLINE_CHARACTERS = 1000  # below this, tokenizing takes under 0.3 ms, a hop to a thread and back 0.1: stay on the loop
INLINE_TOKENS = 500  # likewise, where ids become text


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    ids: Ints  # [length]
    types: Ints  # [length]
    truncated: bool
    empty: bool  # a text, or a side of a pair, that gave no tokens of its own
    spans: Ints  # [length, 2] each token's characters, -1 for special tokens; [0, 2] where nobody asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What to do with a text that is too long."""

    truncate: bool
    direction: Direction = "right"


@dataclass(slots=True, eq=False)
class Tokenizer:
    artifact: Artifact
    max_characters: int
    _plain: HFTokenizer = field(init=False, repr=False)  # special tokens in a text are text
    _masking: HFTokenizer = field(init=False, repr=False)  # the mask token in a text is a mask, all others are text
    _thread: ThreadPoolExecutor = field(init=False, repr=False)

    def open(self) -> None:
        self._plain = HFTokenizer.from_file(str(self.artifact.tokenizer))
        self._plain.encode_special_tokens = True
        self._masking = with_only_mask_token(self.artifact.tokenizer, self.mask_id)
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    @property
    def mask_id(self) -> int:
        """-1 where the model has no mask token."""
        return self.artifact.manifest.special_tokens.get("mask", -1)

    @property
    def mask_token(self) -> str:
        return self._plain.id_to_token(self.mask_id) or ""

    async def encode(
        self, texts: Sequence[Text], truncation: Truncation, *, masks: bool = False, spans: bool = False
    ) -> list[Encoded]:
        """Raises Invalid, with the index of the text, where one has too many characters or, without truncation, tokens."""
        sizes = [_characters(text) for text in texts]
        for index, size in enumerate(sizes):
            if size > self.max_characters:
                message = f"input has {size} characters; at most {self.max_characters} are taken (BERT_MAX_CHARACTERS)"
                raise Invalid(message, code="too_long", index=index)

        def encode(part: slice) -> list[Encoded]:
            return self.encode_sync(texts[part], truncation, masks=masks, spans=spans, first=part.start)

        return await self._in_portions(sizes, INLINE_CHARACTERS, encode)

    def encode_sync(
        self, texts: Sequence[Text], truncation: Truncation, *, masks: bool = False, spans: bool = False, first: int = 0
    ) -> list[Encoded]:
        """As `encode`, on the calling thread; `first` is the index of the first text in its request."""
        pieces = self._masking if masks else self._plain
        encodings = _encodings(pieces, texts)
        limit = self.artifact.manifest.max_tokens
        return [
            _encoded(encoding, truncated=False, spans=spans)
            if len(encoding) <= limit
            else _encoded(self._shorten(pieces, text, truncation, len(encoding), index), truncated=True, spans=spans)
            for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True), first)
        ]

    async def first_ids(self, words: Sequence[str]) -> list[int]:
        """Of each word the piece that is called so, or the first of the pieces it is tokenized to; nothing of a word that has none."""
        sizes = [len(word) for word in words]
        if sum(sizes) > self.max_characters:
            raise Invalid(
                f"targets hold {sum(sizes)} characters; at most {self.max_characters} are taken (BERT_MAX_CHARACTERS)",
                code="targets",
            )
        return await self._in_portions(sizes, INLINE_CHARACTERS, lambda part: self._first_ids(words[part]))

    def piece(self, number: int) -> str:
        """The piece as the vocabulary spells it."""
        return self._plain.id_to_token(number) or ""

    def joined(self, pieces: Sequence[str]) -> str:
        return str(self._plain.decoder.decode(list(pieces)))

    async def decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each sequence of ids as text."""

        def decode(part: slice) -> list[str]:
            return [self._plain.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences[part]]

        return await self._in_portions([len(ids) for ids in sequences], INLINE_TOKENS, decode)

    async def _in_portions(self, sizes: Sequence[int], inline: int, work: Callable[[slice], list[T]]) -> list[T]:
        """The results of `work`, of items of these sizes: here where they are `inline` in all, otherwise in portions on the tokenizer's thread."""
        if sum(sizes) <= inline:
            return work(slice(0, len(sizes)))
        done: list[T] = []
        for part in portions(sizes):
            done += await asyncio.get_running_loop().run_in_executor(self._thread, work, part)
        return done

    def _first_ids(self, words: Sequence[str]) -> list[int]:
        known = {word: self._plain.token_to_id(word) for word in words if word}
        others = self._plain.encode_batch(
            [word for word, number in known.items() if number is None], add_special_tokens=False
        )
        return [
            *(number for number in known.values() if number is not None),
            *(other.ids[0] for other in others if other.ids),
        ]

    def _shorten(self, pieces: HFTokenizer, text: Text, truncation: Truncation, length: int, index: int) -> Encoding:
        limit = self.artifact.manifest.max_tokens
        if not truncation.truncate:
            message = f"input has {length} tokens; this model takes at most {limit}: shorten it or send truncate: true"
            raise Invalid(message, code="too_long", index=index)
        if isinstance(text, str):
            (first,) = pieces.encode_batch([text], add_special_tokens=False)
            first.truncate(limit - pieces.num_special_tokens_to_add(False), direction=truncation.direction)
            return pieces.post_process(first)
        first, second = pieces.encode_batch(list(text), add_special_tokens=False)
        keep = longest_first(len(first), len(second), limit - pieces.num_special_tokens_to_add(True))
        for side, kept in zip((first, second), keep, strict=True):
            side.truncate(kept, direction=truncation.direction)
        return pieces.post_process(first, second)


def portions(sizes: Sequence[int]) -> list[slice]:
    """Neighbouring texts in portions of about PORTION_CHARACTERS: between two of them, other requests get the tokenizer's thread."""
    parts, start, filled = [], 0, 0
    for i, size in enumerate(sizes):
        if filled and filled + size > PORTION_CHARACTERS:
            parts.append(slice(start, i))
            start, filled = i, 0
        filled += size
    return [*parts, slice(start, len(sizes))]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each side stay when both must fit `room`; the longer side gives, on a tie the odd token stays with the second."""
    shorter = min(first, second, room // 2)
    if first + second <= room:
        return first, second
    if first < second or (first == second and room % 2):
        return shorter, room - shorter
    return room - shorter, shorter


def with_only_mask_token(file: Path, mask_id: int) -> HFTokenizer:
    """The tokenizer in `file` with every special token but the mask turned back into text."""
    content = json.loads(file.read_text("utf-8"))
    content["added_tokens"] = [
        token for token in content["added_tokens"] if not token["special"] or token["id"] == mask_id
    ]
    return HFTokenizer.from_str(json.dumps(content))


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _encodings(pieces: HFTokenizer, texts: Sequence[Text]) -> list[Encoding]:
    """`encode` keeps the interpreter's lock: one short text is done 15 us sooner than by `encode_batch`, which gives it up and gets it back."""
    if len(texts) != 1 or _characters(texts[0]) > INLINE_CHARACTERS:
        return pieces.encode_batch(list(texts))
    text = texts[0]
    return [pieces.encode(text) if isinstance(text, str) else pieces.encode(*text)]


def _encoded(encoding: Encoding, *, truncated: bool, spans: bool) -> Encoded:
    """`empty` is read off the encoding, since a text of zero-width characters has no tokens either."""
    sides = set(encoding.sequence_ids) if encoding.n_sequences > 1 else None
    empty = not {0, 1} <= sides if sides is not None else all(encoding.special_tokens_mask)
    places = np.array(encoding.offsets, np.int32) if spans else np.empty((0, 2), np.int32)
    if spans:
        places[np.array(encoding.special_tokens_mask, bool)] = -1
    return Encoded(np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32), truncated, empty, places)
