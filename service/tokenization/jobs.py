"""Texts on their way to sequences in steps: long texts in pieces, requests in turns on one thread."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints
from packbert.service.errors import Overloaded, TokenizerFailed
from packbert.service.tokenization.check import guard
from packbert.service.tokenization.encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    Text,
    Texts,
    check_room,
    encode_texts,
    longest_first,
    to_encoded_text,
    too_long,
)

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
        """Only where words end, and only if PROBE gives the same tokens and offsets whole and cut anywhere."""
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


T = TypeVar("T")
SECONDS_PER_CHARACTER = 1e-6  # English text, measured
MAX_UNQUEUED = 2**24  # characters of requests that the queue has not admitted: two of the largest bodies, 10 to 30 s
OLDEST_EVERY = 4  # every fourth step is of the request that came first, so that smaller ones cannot hold it up for ever


@dataclass(slots=True, eq=False)
class Turns:
    """A request's place among those that are tokenized."""

    characters: int  # left
    queued: bool  # admitted by the queue, which counts its tokens
    granted: "asyncio.Future[None] | None" = None  # it waits for its next step


@dataclass(slots=True, eq=False)
class TokenizingScheduler:
    """`enter`, `run` for each step, `leave`; all on one event loop."""

    thread: Executor
    report: Callable[[int, int], None] = lambda requests, characters: None  # called with both sums when they change
    _requests: dict[Turns, None] = field(default_factory=dict)  # in the order of their arrival
    _characters: int = 0
    _unqueued: int = 0  # of those, of requests that the queue has not admitted
    _busy: bool = False
    _steps: int = 0

    @property
    def requests(self) -> int:
        return len(self._requests)

    @property
    def characters(self) -> int:
        """Of the texts in all requests that have not been read."""
        return self._characters

    def enter(self, characters: int, *, queued: bool) -> Turns:
        """Raises Overloaded where too much is waiting that no queue counts; a request alone is always admitted."""
        if not queued and self._unqueued and self._unqueued + characters > MAX_UNQUEUED:
            waiting = (
                f"{self._unqueued} characters of other requests wait for the tokenizer, and this one has {characters}"
            )
            raise Overloaded(
                f"{waiting}; at most {MAX_UNQUEUED} may wait: send it again later",
                retry_after=self._unqueued * SECONDS_PER_CHARACTER,
            )
        turns = Turns(0, queued)
        self._requests[turns] = None
        self._set(turns, characters)
        return turns

    async def run(self, turns: Turns, characters: int, step: Callable[[], T]) -> T:
        """What `step` returns on the thread, once it is this request's turn; `characters` are those still to be read.

        Where it is cancelled during its step, the step ends on the thread before the next one begins.
        """
        self._set(turns, characters)
        if self._busy:
            turns.granted = asyncio.get_running_loop().create_future()
            try:
                await turns.granted
            except asyncio.CancelledError:
                if turns.granted.done() and not turns.granted.cancelled():  # its turn had come
                    self._grant_next()
                raise
            finally:
                turns.granted = None
        self._busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, step)
        finally:
            self._grant_next()

    def leave(self, turns: Turns) -> None:
        self._set(turns, 0)
        del self._requests[turns]
        self.report(len(self._requests), self._characters)

    def _set(self, turns: Turns, characters: int) -> None:
        self._characters += characters - turns.characters
        self._unqueued += 0 if turns.queued else characters - turns.characters
        turns.characters = characters
        self.report(len(self._requests), self._characters)

    def _grant_next(self) -> None:
        """The thread is free: the next step is of the request with the fewest characters left, or of the oldest."""
        waiting = [turns for turns in self._requests if turns.granted is not None and not turns.granted.done()]
        self._busy = bool(waiting)
        if not waiting:
            return
        self._steps += 1
        oldest = self._steps % OLDEST_EVERY == 0
        chosen = waiting[0] if oldest else min(waiting, key=lambda turns: turns.characters)
        if chosen.granted is not None:
            chosen.granted.set_result(None)


TEXT_COST = 100  # characters that a text counts for beside its own: its arrays take as long
SAMPLES, SAMPLE_CHARACTERS = 16, 60  # texts of a request, and the characters of each, that an estimate is made from
MIN_TOKENS_PER_CHARACTER = 0.05  # of an estimate
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class EncodingJob:
    """`step` until it is `done`; each step gives the next texts, or none while a long one is read."""

    tokenizer: HFTokenizer
    cuts: Cuts
    texts: Texts
    sizes: Sequence[int]  # characters of each text
    options: EncodeOptions
    truncate: Direction | None  # the side that is cut off; None: a text that is too long is an error
    limit: int  # tokens of a text, special ones counted
    mask_id: int
    position: int = 0  # the next text
    sequences_per_text: int = 1
    _long: LongText | None = None  # the next text, partly read
    _tokens: int = 0  # of the sample and of the texts that were not cut
    _characters: int = 0  # of those
    _sizes: "np.ndarray[tuple[int], np.dtype[np.int64]]" = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = np.array(self.sizes, np.int64)

    @property
    def done(self) -> bool:
        return self.position == len(self.texts)

    @property
    def owners(self) -> Sequence[int]:
        """The index of the text of each sequence; it may cover sequences that are not made yet."""
        return range(len(self.texts))

    @property
    def expected_sequences(self) -> int:
        """Of the texts that are left; estimated where a text may be several."""
        return (len(self.texts) - self.position) * self.sequences_per_text

    @property
    def left(self) -> int:
        """Characters that may still have to be read."""
        if self._long is not None:
            return int(self._sizes[self.position + 1 :].sum()) + self._long.left
        return int(self._sizes[self.position :].sum())

    def sample(self) -> None:
        """Reads the beginnings of some texts, spread over the request, for `expected_tokens`."""
        every = -(-len(self.texts) // SAMPLES)
        self._read_samples(
            [(text if isinstance(text, str) else text[0])[:SAMPLE_CHARACTERS] for text in self.texts[::every]]
        )

    def _read_samples(self, samples: Sequence[str]) -> None:
        try:
            encodings = guard(lambda: self.tokenizer.encode_batch(list(samples), add_special_tokens=False))
        except TokenizerFailed:
            return  # the text that it fails on is found in its turn
        self._tokens += sum(map(len, encodings))
        self._characters += sum(map(len, samples))

    @property
    def expected_tokens(self) -> int:
        """Estimated tokens of the texts that are left, from those that were read; at least 1 until it is done."""
        return 0 if self.done else max(1, self._estimate_tokens(self._expected_sizes()))

    def _expected_sizes(self) -> Floats:
        """[texts that are left], their tokens, uncut and with special tokens."""
        rate = max(MIN_TOKENS_PER_CHARACTER, self._tokens / max(1, self._characters))
        pair = not isinstance(self.texts[0], str)
        sizes = self._sizes[self.position :] * rate + self.tokenizer.num_special_tokens_to_add(pair)
        return sizes.astype(np.float64, copy=False)

    def _estimate_tokens(self, sizes: Floats) -> int:
        """The tokens that the model gets of texts of so many tokens."""
        return int(np.minimum(sizes, self.limit).sum())

    def step(self) -> list[EncodedText]:
        """Raises Invalid and TokenizerFailed with the index of the text."""
        if self.sizes[self.position] > PIECE_CHARACTERS and self.cuts.pattern is not None:
            return self._read_long()
        first = self.position
        end, cost = first, 0
        while end < len(self.texts) and (end == first or cost + self.sizes[end] <= PIECE_CHARACTERS):
            cost += self.sizes[end] + TEXT_COST * self.sequences_per_text
            end += 1
        encoded = self._encode(first, end)
        self.position = end
        return encoded

    def _encode(self, first: int, end: int) -> list[EncodedText]:
        """The texts from `first` to `end`, which are read at once."""
        encoded = encode_texts(
            self.tokenizer,
            self.texts[first:end],
            self.options,
            self.truncate,
            limit=self.limit,
            mask_id=self.mask_id,
            first=first,
        )
        for text, size in zip(encoded, self.sizes[first:end], strict=True):
            if not text.truncated:
                self._tokens += len(text.ids)
                self._characters += size
        return encoded

    def _read_long(self) -> list[EncodedText]:
        index = self.position
        return guard(lambda: self._read_piece(index), index)

    def _read_piece(self, index: int) -> list[EncodedText]:
        long = self._long = self._long or self._start_long(index)
        long.read()
        self._check_long(index, long)
        if not long.done:
            return []
        encoded = self._finish_long(index, long)
        self.position, self._long = index + 1, None
        return encoded

    def _start_long(self, index: int) -> LongText:
        text = self.texts[index]
        room = self.limit - self.tokenizer.num_special_tokens_to_add(not isinstance(text, str))
        if room < 1 + (not isinstance(text, str)):
            check_room(self.tokenizer, text, self.limit, index)
        count_all = self.truncate == "left" and self.options.pooled_from > 0
        return LongText(self.tokenizer, self.cuts, text, room, self.truncate, count_all)

    def _check_long(self, index: int, long: LongText) -> None:
        """Raises Invalid for a text that is too long, as soon as that is known."""
        cut = long.tokens - long.room
        if cut > 0 and self.truncate is None:
            more, found = "more than " if long.left else "", self.limit + cut - (1 if long.left else 0)
            raise too_long(f"{more}{found}", self.limit, index)

    def _finish_long(self, index: int, long: LongText) -> list[EncodedText]:  # noqa: ARG002
        encoding, offsets = long.encoding()
        cut, left = max(0, long.tokens - long.room), self.truncate == "left"
        encoded = to_encoded_text(encoding, self.options, self.mask_id, limit=self.limit, left=left, already_cut=cut)
        if self.options.spans:
            encoded.spans[encoded.spans[:, 0] >= 0] = offsets
        return [replace(encoded, empty=long.empty)]
