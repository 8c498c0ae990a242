"""Texts on their way to sequences: a request's texts in steps, requests in turns on one thread."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.service.errors import Overloaded, TokenizerFailed
from packbert.service.tokenization.check import guard
from packbert.service.tokenization.encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    Text,
    Texts,
    encode_each,
    refuse_long,
    to_encoded_text,
)

CHUNK_CHARACTERS = 5000  # 2 to 10 ms of tokenizing: a token takes 1 to 2 us on a quiet core, a Chinese character is one
TEXT_COST = 100  # characters that a text counts for beside its own: its arrays take as long


def chunk_end(sizes: Sequence[int], first: int, sequences_per_text: int = 1) -> int:
    """The end of the texts from `first` on that are read in one step; a text of more characters is read alone."""
    end, cost = first, 0
    while end < len(sizes) and (end == first or cost + sizes[end] <= CHUNK_CHARACTERS):
        cost += sizes[end] + TEXT_COST * sequences_per_text
        end += 1
    return end


BETWEEN_WORDS = r"(?<=[0-9A-Za-z])(?= [0-9A-Za-z])"
BETWEEN_CHINESE = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"  # of BERT: each Chinese character is a word
PROBE = "The quick brown fox 12 jumped  over\nthe 3 lazy dogs , and naïve words at 北京大学 , (x) 7 of it's end"


def find_word_ends(tokenizer: HFTokenizer) -> re.Pattern[str] | None:
    """Where a text can be cut: the tokens before are those of the whole text. None where that is not known.

    That is: between white space and the word before it, for a tokenizer that reads the words of PROBE apart.
    """
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for pattern in (re.compile(f"{BETWEEN_WORDS}|{BETWEEN_CHINESE}"), re.compile(BETWEEN_WORDS)):
        if not any(map(pattern.search, added)) and _are_word_ends(tokenizer, pattern):
            return pattern
    return None


def _are_word_ends(tokenizer: HFTokenizer, pattern: re.Pattern[str]) -> bool:
    texts = [PROBE, *(PROBE[: found.start()] for found in pattern.finditer(PROBE))]
    try:
        whole, *beginnings = guard(lambda: tokenizer.encode_batch(texts, add_special_tokens=False))
    except TokenizerFailed:
        return False
    ids, words = whole.ids, whole.word_ids
    sizes = [len(one) for one in beginnings]
    same = all(ids[:size] == one.ids for one, size in zip(beginnings, sizes, strict=True))
    return same and all(words[size - 1] != words[size] for size in sizes)


T = TypeVar("T")
SECONDS_PER_CHARACTER = 1e-6  # English text, measured
MAX_UNQUEUED = 2**24  # characters of requests that the queue has not admitted: two of the largest bodies, 10 to 30 s


@dataclass(slots=True, eq=False)
class Turns:
    """The requests on the tokenizer's thread, which take turns: a step of one, then one of the next."""

    thread: Executor  # one thread, whose steps run in the order in which they came
    report: Callable[[int, int], None] = lambda requests, characters: None  # called with both sums when they change
    requests: int = 0
    characters: int = 0  # of all requests, that have not been read
    unqueued: int = 0  # of those, of requests that the queue has not admitted

    @contextmanager
    def enter(self, characters: int, *, queued: bool) -> Iterator["Turn"]:
        """The turn of a request until the end of the block; `queued`: the queue has admitted it and counts its tokens.

        Raises Overloaded where too much is waiting that no queue counts; a request alone is always admitted.
        """
        if not queued and self.unqueued and self.unqueued + characters > MAX_UNQUEUED:
            waiting = (
                f"{self.unqueued} characters of other requests wait for the tokenizer, and this one has {characters}"
            )
            raise Overloaded(
                f"{waiting}; at most {MAX_UNQUEUED} may wait: send it again later",
                retry_after=self.unqueued * SECONDS_PER_CHARACTER,
            )
        turn = Turn(self, queued)
        self.requests += 1
        turn.count(characters)
        try:
            yield turn
        finally:
            self.requests -= 1
            turn.count(0)


@dataclass(slots=True, eq=False)
class Turn:
    """A request's place among those that are tokenized."""

    turns: Turns
    queued: bool
    characters: int = 0  # that have not been read

    def count(self, characters: int) -> None:
        """So many characters are still to be read."""
        turns, more = self.turns, characters - self.characters
        self.characters = characters
        turns.characters += more
        turns.unqueued += 0 if self.queued else more
        turns.report(turns.requests, turns.characters)

    async def run(self, step: Callable[[], T], characters: int) -> T:
        """What `step` returns on the thread; `characters` are those still to be read.

        Where it is cancelled during its step, the step ends on the thread before the next one begins.
        """
        self.count(characters)
        return await asyncio.get_running_loop().run_in_executor(self.turns.thread, step)


SAMPLES, SAMPLE_CHARACTERS = 16, 60  # places of a request's texts, and the characters of each, for an estimate
MIN_TOKENS_PER_CHARACTER = 0.05  # of an estimate
BEGINNING_CHARACTERS_PER_TOKEN = 6  # of a text that is cut: English has 4 to 5
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class EncodingJob:
    """The texts of a request on their way to sequences: `step` gives those of the next texts, until it is `done`.

    A long text that may not exceed the limit, or is cut on the right, is read only as far as that needs.
    """

    tokenizer: HFTokenizer
    texts: Texts
    sizes: Sequence[int]  # characters of each text
    options: EncodeOptions
    limit: int  # tokens of a text, special ones counted
    mask_id: int
    truncate: Direction | None = None  # the side that is cut off; None: a text that is too long is an error
    word_ends: re.Pattern[str] | None = None  # as find_word_ends; None: every text is read as a whole
    position: int = 0  # the next text
    sequences_per_text: int = 1
    _tokens: int = 0  # of the sample and of the texts that were read as a whole, without special tokens
    _characters: int = 0  # of those
    owners: Sequence[int] = field(init=False)  # the text of each sequence; may cover some that are not made yet
    _sizes: "np.ndarray[tuple[int], np.dtype[np.int64]]" = field(init=False)

    def __post_init__(self) -> None:
        self.owners, self._sizes = range(len(self.texts)), np.array(self.sizes, np.int64)

    @property
    def done(self) -> bool:
        return self.position == len(self.texts)

    @property
    def left(self) -> int:
        """Characters that have not been read."""
        return int(self._sizes[self.position :].sum())

    def step(self) -> list[EncodedText]:
        """Raises Invalid and TokenizerFailed with the index of the text."""
        first, end = self.position, chunk_end(self.sizes, self.position, self.sequences_per_text)
        encoded: list[EncodedText] = []
        for index, encoding in enumerate(self._read(first, end), first):
            encoded += self._sequences(index, encoding)
        self.position = end
        return encoded

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        """Those of the text `index`."""
        if len(encoding) > self.limit:
            refuse_long(self.tokenizer, self.texts[index], str(len(encoding)), self.truncate, self.limit, index)
        left = self.truncate == "left"
        return [to_encoded_text(encoding, self.options, self.mask_id, limit=self.limit, left=left)]

    def _read(self, first: int, end: int) -> list[Encoding]:
        if self.word_ends and self.truncate != "left" and self.sizes[first] > CHUNK_CHARACTERS:
            return [self._read_long(first, self.word_ends)]
        encodings = encode_each(self.tokenizer, self.texts[first:end], first)
        self._tokens += sum(map(len, encodings)) - len(encodings) * self._special
        self._characters += sum(self.sizes[first:end])
        return encodings

    def _read_long(self, index: int, word_ends: re.Pattern[str]) -> Encoding:
        """Of the beginning of the text, if the rest cannot change what is kept of it; else of the whole text."""
        text = self.texts[index]
        least = 0 if isinstance(text, str) else min(map(len, text))
        characters = max(BEGINNING_CHARACTERS_PER_TOKEN * self.limit, least)
        while (beginning := _beginning(text, characters, word_ends)) != text:
            (encoding,) = encode_each(self.tokenizer, [beginning], index)
            if len(encoding) > self.limit and _keeps_longer(text, encoding):
                size = f"more than {len(encoding) - 1}"
                refuse_long(self.tokenizer, text, size, self.truncate, self.limit, index)
                return encoding
            characters *= 2
        return encode_each(self.tokenizer, [text], index)[0]

    def sample(self) -> None:
        """Reads some of the texts, spread over all of their characters, for the estimates."""
        ends = np.cumsum(self._sizes)
        samples = []
        for at in np.linspace(0, int(ends[-1]), SAMPLES, endpoint=False, dtype=np.int64).tolist():
            index = min(int(np.searchsorted(ends, at, side="right")), len(self.texts) - 1)
            text, start = self.texts[index], at - int(ends[index] - self._sizes[index])
            side = text if isinstance(text, str) else text[1]  # a context or a document, more often than a question
            samples.append(side[start : start + SAMPLE_CHARACTERS] or side[:SAMPLE_CHARACTERS])
        try:
            encodings = guard(lambda: self.tokenizer.encode_batch(samples, add_special_tokens=False))
        except TokenizerFailed:
            return  # the text that it fails on is found in its turn
        self._tokens += sum(map(len, encodings))
        self._characters += sum(map(len, samples))

    @property
    def expected_sequences(self) -> int:
        """Of the texts that are left; estimated where a text may be several."""
        return (len(self.texts) - self.position) * self.sequences_per_text

    @property
    def expected_tokens(self) -> int:
        """Estimated tokens of the texts that are left, from those that were read; at least 1 until it is done."""
        return 0 if self.done else max(1, self._estimate_tokens(self._expected_sizes()))

    def _estimate_tokens(self, sizes: Floats) -> int:
        """The tokens that the model gets of texts of so many tokens."""
        return int(np.minimum(sizes, self.limit).sum())

    def _expected_sizes(self) -> Floats:
        """[texts that are left], their tokens, uncut and with special tokens."""
        rate = max(MIN_TOKENS_PER_CHARACTER, self._tokens / max(1, self._characters))
        sizes = self._sizes[self.position :] * rate + self._special
        return sizes.astype(np.float64, copy=False)

    @property
    def _special(self) -> int:
        """Special tokens of a text."""
        return self.tokenizer.num_special_tokens_to_add(not isinstance(self.texts[0], str))


def _beginning(text: Text, characters: int, word_ends: re.Pattern[str]) -> Text:
    """With about so many characters of the text, or of the longer side of a pair; the whole where no word ends then."""

    def cut(side: str) -> str:
        found = word_ends.search(side, characters)
        return side[: found.start()] if found else side

    if isinstance(text, str):
        return cut(text)
    first, second = text
    return (cut(first), second) if len(first) > len(second) else (first, cut(second))


def _keeps_longer(text: Text, encoding: Encoding) -> bool:
    """Whether of a pair the side that has more characters has more tokens too: so it is cut, as in the whole pair."""
    if isinstance(text, str):
        return True
    first, second = (encoding.sequence_ids.count(side) for side in (0, 1))
    return first > second if len(text[0]) > len(text[1]) else second >= first
