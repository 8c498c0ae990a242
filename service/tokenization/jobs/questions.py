"""Questions with their contexts as the model takes them: a context that is too long becomes windows that overlap, each
beside the whole question. The windows are those of the tokenizers library's truncation of the second text
(`only_second`, `stride`), as transformers' question-answering pipeline makes them; as in `windows`, they are slices."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding

from model_export.artifact.placement import Ints
from service.errors import Invalid
from service.tokenization.encoding import EncodedText, encode_each
from service.tokenization.jobs.job import SAMPLE_CHARACTERS, SAMPLES, EncodingJob, Floats
from service.tokenization.jobs.windows import KEEP_OFFSETS, WindowSplitter, too_many_windows
from service.tokenization.pieces import LongText

QUESTION, CONTEXT = 0, 1  # the sides of a pair
DEFAULT_MAX_TOKENS, DEFAULT_STRIDE = 384, 128  # of transformers' pipeline
EMPTY = "it is empty, or holds only spaces and control characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How the context of each question is split. Knows nothing of the answers."""

    limit: int  # tokens of a window, special tokens included
    stride: int | None  # tokens that a window shares with the one before it; None: the pipeline's, if there is room
    question_limit: int | None  # a question is cut to so many tokens; None: never
    align_to_words: bool  # spans are those of a token's word, as far as it lies in the window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """The tokens of a question and its whole context, with special tokens; all arrays [length]."""

    ids: Ints
    types: Ints
    sides: Ints  # QUESTION, CONTEXT; -1 for special tokens
    words: Ints  # of the context: equal for the tokens of one word
    offsets: Ints  # [length, 2] first and end character in the context, for its tokens


@dataclass(slots=True, eq=False, kw_only=True)
class QuestionsJob(EncodingJob):
    """Pairs (question, context) on their way to windows: a step gives those of the next pairs; no context is cut.

    Of a window, `spans` is -1 but for the tokens of the context. Raises Invalid where a side has no tokens, or where a
    question or a stride leaves no room, with the index of the pair; TooLarge for more than `most` windows.
    """

    splitter: WindowSplitter
    asked: WindowOptions
    most: int
    window_owners: list[int] = field(default_factory=list)  # the pair of each window that was made

    @property
    def owners(self) -> Sequence[int]:
        return self.window_owners

    @property
    def expected_sequences(self) -> int:
        return int(self._expected_windows(self._expected_sizes())[0].sum())

    def sample(self) -> None:
        """As of any texts, but of the contexts."""
        every = -(-len(self.texts) // SAMPLES)
        self._read_samples([text[CONTEXT][:SAMPLE_CHARACTERS] for text in self.texts[::every]])

    def _estimate_tokens(self, sizes: Floats) -> int:
        return int(self._expected_windows(sizes)[1].sum())

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        """For the pairs that are left, of so many tokens: how many windows each has, and how many tokens."""
        special = self.tokenizer.num_special_tokens_to_add(True)
        characters = np.array([len(text[QUESTION]) for text in self.texts[self.position :]])
        shares = characters / np.maximum(self._sizes[self.position :], 1)
        questions = np.minimum((sizes - special) * shares, self.asked.question_limit or self.asked.limit)
        rooms = np.maximum(self.asked.limit - questions - special, 1)
        strides = np.minimum(self.asked.limit // 2 if self.asked.stride is None else self.asked.stride, rooms // 2)
        counts = 1 + np.maximum(0.0, np.ceil((sizes - self.asked.limit) / (rooms - strides)))
        return counts, sizes + (counts - 1) * (self.asked.limit - rooms + strides)

    def _encode(self, first: int, end: int) -> list[EncodedText]:
        windows: list[EncodedText] = []
        for index, encoding in enumerate(encode_each(self.tokenizer, self.texts[first:end], first), first):
            self._tokens += len(encoding)
            self._characters += self.sizes[index]
            sides, words = _numbers(encoding.sequence_ids), _numbers(encoding.word_ids)
            windows += self._split(index, _pair(encoding, sides, words, np.array(encoding.offsets, np.int32)))
        return windows

    def _start_long(self, index: int) -> LongText:
        return LongText(self.tokenizer, self.cuts, self.texts[index], sys.maxsize, truncate=None, count_all=True)

    def _check_long(self, index: int, long: LongText) -> None:
        question, context = long.sides
        if not question.left and question.tokens and context.tokens:
            self._count(index, question.tokens, context.tokens)

    def _finish_long(self, index: int, long: LongText) -> list[EncodedText]:
        if long.empty:
            raise _empty(QUESTION if not long.sides[QUESTION].tokens else CONTEXT, index)
        encoding, offsets = long.encoding()
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        sides, words, places = (np.full((len(encoding), *shape), -1, np.int32) for shape in ((), (), (2,)))
        sides[own] = np.repeat([QUESTION, CONTEXT], [side.tokens for side in long.sides])  # sequence_ids lacks some
        words[own] = np.concatenate([_word_numbers(side.encodings) for side in long.sides])
        places[own] = offsets
        return self._split(index, _pair(encoding, sides, words, places))

    def _split(self, index: int, pair: _Pair) -> list[EncodedText]:
        counts = [int((pair.sides == side).sum()) for side in (QUESTION, CONTEXT)]
        for side, tokens in enumerate(counts):
            if not tokens:
                raise _empty(side, index)
        room, stride, count = self._count(index, *counts)
        starts = range(0, count * (room - stride), room - stride) if count > 1 else range(1)
        self.window_owners += [index] * count
        return list(self._windows(index, pair, starts, room))

    def _count(self, index: int, question: int, context: int) -> tuple[int, int, int]:
        """Of so many tokens: those of the context in a window, those that two windows share, the number of windows."""
        asked, special = self.asked, self.tokenizer.num_special_tokens_to_add(True)
        kept = min(question, asked.question_limit or question)
        room = asked.limit - kept - special
        if room < 1:
            found = f"the question has {kept} tokens and a pair {special} special tokens"
            way_out = "shorten it, or send max_question_len"
            message = f"{found}: that leaves no room for the context in {asked.limit} tokens (max_seq_len); {way_out}"
            raise Invalid(message, code="too_long", index=index)
        if context <= room:
            count, stride = 1, 0
        else:
            stride = self._stride(index, room)
            count = 1 + -(-(context - room) // (room - stride))
        if (made := len(self.window_owners) + count) > self.most:
            raise too_many_windows(f"{made} or more", self.most)
        return room, stride, count

    def _stride(self, index: int, room: int) -> int:
        if self.asked.stride is None:
            stride = min(self.asked.limit // 2, DEFAULT_STRIDE)
            return stride if stride < room else room // 2
        if self.asked.stride >= room:
            found = f"doc_stride is {self.asked.stride}; it must be less than {room}"
            reason = f"a window holds {room} tokens of the context beside this question"
            raise Invalid(f"{found}: {reason}", code="stride", index=index)
        return self.asked.stride

    def _windows(self, index: int, pair: _Pair, starts: Sequence[int], room: int) -> Iterator[EncodedText]:
        """Windows whose first tokens are `starts` among the context's."""
        context = np.flatnonzero(pair.sides == CONTEXT)
        first, end = int(context[0]), int(context[-1]) + 1
        before = np.arange(first)
        is_cut = np.zeros(first, bool)
        if self.asked.question_limit is not None:
            is_cut = np.cumsum(pair.sides[:first] == QUESTION) > self.asked.question_limit
            is_cut &= pair.sides[:first] == QUESTION
        after = np.arange(end, len(pair.ids))
        spans = self._first_spans(index, starts)
        for start in starts:
            window = np.arange(first + start, min(first + start + room, end))
            offsets = pair.offsets[window]
            if spans:
                offsets[0] = spans[start]
            if self.asked.align_to_words:
                offsets = _word_spans(offsets, pair.words[window])
            kept = np.concatenate([before[~is_cut], window, after])
            place = np.full((len(kept), 2), -1, np.int32)
            place[len(kept) - len(after) - len(window) : len(kept) - len(after)] = offsets
            yield EncodedText(
                ids=pair.ids[kept],
                types=pair.types[kept],
                outputs=self.options.outputs,
                truncated=bool(is_cut.any()) and start == 0,
                empty=False,
                spans=place,
            )

    def _first_spans(self, index: int, starts: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The span of the first token of each window, by `starts`, where it is another one than inside a text."""
        if len(starts) == 1 or type(self.tokenizer.post_processor).__name__ in KEEP_OFFSETS:
            return {}
        return dict(zip(starts, self.splitter.first_spans(self.texts[index][CONTEXT], starts), strict=True))


def _pair(encoding: Encoding, sides: Ints, words: Ints, offsets: Ints) -> _Pair:
    ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
    return _Pair(ids=ids, types=types, sides=sides, words=words, offsets=offsets)


def _numbers(values: Sequence[int | None]) -> Ints:
    """-1 for None."""
    return np.array([-1 if value is None else value for value in values], np.int32)


def _word_numbers(encodings: Sequence[Encoding]) -> Ints:
    """The word of each token of a text that was read in pieces, each of which counts its words from 0."""
    numbers, first = [], 0
    for encoding in encodings:
        words = _numbers(encoding.word_ids)
        numbers.append(np.where(words < 0, words, words + first))
        first += int(words.max(initial=-1)) + 1
    return np.concatenate(numbers)


def _word_spans(offsets: Ints, words: Ints) -> Ints:
    """[length, 2] first and end character of each token's word; of a token without a word, those of the token."""
    is_first = np.append(True, (words[1:] != words[:-1]) | (words[1:] < 0))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(words)) - 1
    word = np.cumsum(is_first) - 1
    return np.stack([offsets[firsts[word], 0], offsets[lasts[word], 1]], axis=-1)


def _empty(side: int, index: int) -> Invalid:
    return Invalid(f"the {('question', 'context')[side]} has no tokens: {EMPTY}", code="empty", index=index)
