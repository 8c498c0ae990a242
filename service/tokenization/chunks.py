"""A request's texts as chunks of sequences: some texts at a time, in turns with other requests on the same thread."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid, Overloaded, TokenizerFailed
from ..scheduling.request import Chunk
from ..turns import DEADLINE
from .encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    PromptedTexts,
    Text,
    Texts,
    encode_each,
    guard,
    to_encoded_text,
    too_long,
)

T = TypeVar("T")
TextChunk = Chunk[EncodedText]
Chunks = AsyncGenerator[TextChunk, list[Row] | None]  # gets the rows that a chunk needs
CHUNK_CHARACTERS = 5000  # 2 to 10 ms of tokenizing: 1 to 2 us for a token, and for a Chinese character
TEXT_COST = 100  # characters that a sequence counts for beside its text: its arrays take as long
SECONDS_PER_CHARACTER = 1e-6  # English text, measured
MAX_WAITING = 2**24  # characters that wait for the thread: two of the largest bodies, 10 to 30 s
TOO_LATE = "before the texts were tokenized: send less or allow more time"
BETWEEN_WORDS = r"(?<=[0-9A-Za-z])(?= [0-9A-Za-z])"
BETWEEN_CHINESE = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"  # of BERT: each Chinese character is a word
PROBE = "The quick brown fox 12 jumped  over\nthe 3 lazy dogs , and naïve words at 北京大学 , (x) 7 of it's end"
BEGINNING_CHARACTERS_PER_TOKEN = 6  # of a text that is cut: English has 4 to 5


@dataclass(slots=True, eq=False)
class Turns:
    """The tokenizer's thread, which reads a chunk of one request, then a chunk of the next."""

    thread: Executor  # a single thread, whose steps run in the order in which they came
    report: Callable[[int, int], None] = lambda requests, characters: None  # called with both sums when they change
    requests: int = 0  # that wait for the thread or are read
    characters: int = 0  # of theirs

    async def run(self, step: Callable[[], T], characters: int, *, queued: bool = False) -> T:
        """What `step`, which reads so many characters, returns on the thread.

        Raises DeadlineExceeded, and Overloaded if too much waits, unless the queue has admitted the request (`queued`);
        a request alone is always read.
        """
        if self.requests and not queued and self.characters + characters > MAX_WAITING:
            waiting = f"{self.characters} characters wait for the tokenizer, and this request has {characters}"
            seconds = self.characters * SECONDS_PER_CHARACTER
            raise Overloaded(f"{waiting}; at most {MAX_WAITING} may wait: send it again later", retry_after=seconds)
        self._count(1, characters)
        try:
            reading = asyncio.get_running_loop().run_in_executor(self.thread, step)
            return await DEADLINE.get().wait_for(reading, TOO_LATE)
        finally:
            self._count(-1, -characters)

    def _count(self, requests: int, characters: int) -> None:
        self.requests += requests
        self.characters += characters
        self.report(self.requests, self.characters)


def in_steps(sizes: Sequence[int], first: int = 0, sequences_per_text: int = 1) -> Iterator[slice]:
    """The texts from `first` on that are read in each step; a text of more characters is read alone."""
    cost = 0
    for at in range(first, len(sizes)):
        if at > first and cost + sizes[at] > CHUNK_CHARACTERS:
            yield slice(first, at)
            first, cost = at, 0
        cost += sizes[at] + TEXT_COST * sequences_per_text
    if first < len(sizes):
        yield slice(first, len(sizes))


@dataclass(slots=True, eq=False)
class TextReader:
    """Makes chunks of a request's texts, a sequence of each.

    A long text that may not exceed the limit, or is cut on the right, is read only as far as that needs.
    """

    tokenizer: HFTokenizer
    texts: Texts
    sizes: Sequence[int]  # characters of each text
    options: EncodeOptions
    limit: int  # tokens of a text, with special tokens
    mask_id: int
    truncate: Direction | None = None  # the side that is cut off; None: a text that is too long is an error
    word_ends: re.Pattern[str] | None = None  # as find_word_ends; None: every text is read as a whole
    position: int = 0  # the next text
    sequences_per_text: int = 1
    made_tokens: int = 0  # of the sequences so far
    _bytes: list[int] = field(default_factory=list)  # of each text

    async def chunks(self, turns: Turns) -> Chunks:
        """In turns with other requests. The first chunk is read before the queue has admitted the request."""
        for texts in in_steps(self.sizes, self.position, self.sequences_per_text):
            yield await turns.run(partial(self.read, texts.stop), sum(self.sizes[texts]), queued=texts.start > 0)

    def read(self, end: int) -> TextChunk:
        """The chunk of the texts up to `end`. Raises Invalid and TokenizerFailed with the index of the text."""
        sequences, owners = list[EncodedText](), list[int]()
        for index, encoding in enumerate(self._encode(self.position, end), self.position):
            own = self._sequences(index, encoding)
            sequences += own
            owners += [index] * len(own)
        self.position = end
        self.made_tokens += sum([len(one.ids) for one in sequences])
        return Chunk(sequences, owners, left=self._expect())

    def _expect(self) -> int:
        """The tokens of the texts that are left, at least 1, by the tokens of a byte so far.

        A byte of Chinese has about as many tokens as a byte of English.
        """
        if self.position == len(self.texts):
            return 0
        if not self._bytes:
            plain = self.texts.texts if isinstance(self.texts, PromptedTexts) else self.texts
            joined = (text if isinstance(text, str) else "".join(text) for text in plain)
            more = (len(text.encode(errors="replace")) - len(text) for text in joined)
            self._bytes = list(map(add, self.sizes, more))  # of a prompt the characters
        read = sum(self._bytes[: self.position])
        return max(1, round(self.made_tokens * (sum(self._bytes) - read) / max(1, read)))

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        """Those of the text `index`."""
        if len(encoding) > self.limit:
            self._refuse_long(index, str(len(encoding)))
        left = self.truncate == "left"
        return [to_encoded_text(encoding, self.options, self.mask_id, limit=self.limit, left=left)]

    def _encode(self, first: int, end: int) -> list[Encoding]:
        if self.word_ends and self.truncate != "left" and self.sizes[first] > CHUNK_CHARACTERS:
            return [self._encode_long(first, self.word_ends)]
        return encode_each(self.tokenizer, self.texts[first:end], first)

    def _encode_long(self, index: int, word_ends: re.Pattern[str]) -> Encoding:
        """Of the beginning of the text, if the rest cannot change what is kept of it; else of the whole text."""
        text = self.texts[index]
        least = 0 if isinstance(text, str) else min(map(len, text))
        characters = max(BEGINNING_CHARACTERS_PER_TOKEN * self.limit, least)
        while (beginning := _beginning(text, characters, word_ends)) != text:
            (encoding,) = encode_each(self.tokenizer, [beginning], index)
            if len(encoding) > self.limit and _keeps_longer(text, encoding):
                self._refuse_long(index, f"more than {len(encoding) - 1}")
                return encoding
            characters *= 2
        return encode_each(self.tokenizer, [text], index)[0]

    def _refuse_long(self, index: int, size: str) -> None:
        """Raises Invalid for a text of `size` tokens, over the limit, if it may not be cut.

        Also if the limit leaves no room for a token of each text beside the special tokens.
        """
        is_pair = not isinstance(self.texts[index], str)
        special = self.tokenizer.num_special_tokens_to_add(is_pair)
        if self.limit - special < 1 + is_pair:
            kind, texts = ("pair", "two texts") if is_pair else ("text", "a text")
            message = f"this model takes at most {self.limit} tokens, and a {kind} has {special} special tokens"
            raise Invalid(f"{message}: there is no room for {texts}, truncated or not", code="too_long", index=index)
        if self.truncate is None:
            raise too_long(size, self.limit, index)


async def each(chunks: TextChunk | Chunks) -> AsyncIterator[TextChunk]:
    """The chunk alone, or all chunks that need no rows."""
    if isinstance(chunks, Chunk):
        yield chunks
        return
    async for chunk in chunks:
        yield chunk


def find_word_ends(tokenizer: HFTokenizer) -> re.Pattern[str] | None:
    """Finds places to cut a text at: the tokens before are those of the whole text. None if no such place is known.

    It is between white space and the word before it, for a tokenizer that reads the words of PROBE apart.
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


def _beginning(text: Text, characters: int, word_ends: re.Pattern[str]) -> Text:
    """About so many characters of the text, or of the longer side of a pair; all of it if no word ends after these."""

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
